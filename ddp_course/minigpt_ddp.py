"""Pre-train MiniGPT on one process or on many, on CPUs or on GPUs.

    python ddp_course/minigpt_ddp.py --preset tiny                                          # one process
    torchrun --standalone --nproc-per-node=2 ddp_course/minigpt_ddp.py --preset laptop      # two
    torchrun ... ddp_course/minigpt_ddp.py --run-dir runs/mine --resume auto                # go on after a stop

Read it from `train` downwards. What turns a one-process trainer into this one is marked DDP 1/6 to DDP 6/6.
"""

import contextlib
import math
from dataclasses import asdict, dataclass
from typing import Literal

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from ddp_course.data.token_file import Tokens, open_tokens, prepare
from ddp_course.data.windows import micro_batches, validation_batches, window_starts
from ddp_course.errors import InputError
from ddp_course.models.minigpt import IGNORED, MiniGPT, MiniGPTConfig, generate, parameter_count
from ddp_course.parallel import process_group
from ddp_course.parallel.bucket_order import settle_bucket_order
from ddp_course.parallel.command_line import run
from ddp_course.parallel.optimizer import make_adamw
from ddp_course.parallel.precision import autocast, choose_attention, choose_precision, parameter_dtype
from ddp_course.parallel.process_group import World
from ddp_course.parallel.progress import Progress
from ddp_course.parallel.run_directory import open_run
from ddp_course.parallel.schedule import is_due, warmup_cosine
from ddp_course.parallel.settings import check_ranges, check_tensorboard
from ddp_course.parallel.stop_request import StopRequest
from ddp_course.parallel.sync import assert_replicas_equal, assert_same_value, from_rank_0, sum_over_ranks
from ddp_course.parallel.training_state import TrainingState

IDENTITY = ("layers", "heads", "width", "context", "tokens_per_update", "seed")  # what a resumed run may not change


@dataclass(frozen=True)
class TrainConfig:
    """Pre-train MiniGPT. The same flags mean the same training run at any number of processes."""

    preset: Literal["laptop", "tiny", "gpt2"] = "laptop"
    """A named set of sizes; every other flag changes it. tiny: seconds. laptop: minutes. gpt2: GPUs."""
    data: str = "stdlib"
    """What to read: stdlib (Python's own sources), shakespeare (a download), or a file or folder of text."""
    tokenizer: Literal["bytes", "bpe", "rustbpe"] = "bpe"
    """How text becomes tokens."""
    vocab_size: int | None = 2048
    """Tokens in the vocabulary; None leaves it to the tokenizer (bytes: always 256)."""

    layers: int = 4
    """Transformer blocks."""
    heads: int = 4
    """Attention heads a block."""
    width: int = 256
    """Units of the residual stream."""
    context: int = 128
    """Tokens a window."""
    dropout: float = 0.0
    """Probability of dropping a unit."""
    activation_checkpointing: bool = False
    """Recompute activations in backward: less memory, about a third more time."""

    tokens_per_update: int = 4096
    """Tokens of one optimizer step, over all ranks and micro-batches: the constant of the run."""
    micro_batch_size: int = 4
    """Windows that one rank takes through the model at a time."""
    steps: int = 250
    """Optimizer steps in the whole run."""
    learning_rate: float = 3e-3
    """Peak learning rate, reached after the warm-up."""
    final_learning_rate: float = 3e-4
    """Learning rate at the last step, reached along a cosine."""
    warmup_steps: int = 25
    """Steps over which the learning rate rises from zero."""
    weight_decay: float = 0.1
    """AdamW's decay, on matrices only."""
    gradient_clip: float = 1.0
    """Largest norm of the joint gradient; 0 turns clipping off."""

    precision: Literal["auto", "float32", "bfloat16", "float16", "float64"] = "auto"
    """Of the matrix products; weights stay float32 (float64 for float64). auto: bfloat16 where it is native."""
    compile: bool = False
    """Compile the model with torch.compile: a minute of waiting, then faster steps."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto takes GPUs if there are any."""
    timeout_seconds: float = 120
    """How long a collective may wait for the other ranks before the job fails."""
    seed: int = 1
    """Decides the initial weights, the order of the data, and (with the rank) the dropout masks."""

    run_dir: str = ""
    """Where the run is written; empty: runs/minigpt-DATE-TIME."""
    resume: str = "no"
    """no, auto (the newest valid checkpoint of --run-dir), or the path of a checkpoint."""
    log_every: int = 10
    """Steps between entries in metrics.jsonl."""
    validate_every: int = 50
    """Steps between validations; the last step always validates. 0: only then."""
    validation_windows: int | None = 64
    """Windows of a validation, spread evenly over the held-out text; None takes all of it."""
    checkpoint_every: int = 50
    """Steps between checkpoints; the last step always saves one. 0: only then."""
    keep_checkpoints: int = 2
    """How many of the newest checkpoints stay; 0 keeps all."""
    max_seconds: float | None = None
    """Stop, with a checkpoint, after this many seconds of training."""
    sample_tokens: int = 120
    """Tokens of text written by the model at the end; 0 writes none."""
    tensorboard: bool = False
    """Also write the metrics for TensorBoard."""

    def __post_init__(self) -> None:
        check_ranges(
            self,
            at_least_1=("layers", "heads", "width", "context", "tokens_per_update", "micro_batch_size", "steps",
                        "log_every", "validation_windows"),
            at_least_0=("learning_rate", "final_learning_rate", "warmup_steps", "weight_decay", "gradient_clip", "seed",
                        "validate_every", "checkpoint_every", "keep_checkpoints", "sample_tokens"),
            above_0=("timeout_seconds", "max_seconds"),
        )  # fmt: skip
        check_tensorboard(self.tensorboard)
        if not 0 <= self.dropout < 1:
            raise ValueError(f"--dropout must be a probability from 0 to below 1, not {self.dropout}")
        if self.width % self.heads:
            raise ValueError(f"--width {self.width} does not divide into --heads {self.heads} of equal size")


PRESETS = {
    "laptop": TrainConfig(),
    "tiny": TrainConfig(
        preset="tiny", tokenizer="bytes", vocab_size=None, layers=2, heads=2, width=64, context=64,
        tokens_per_update=2048, micro_batch_size=8, steps=20, warmup_steps=2, precision="float32",
        validate_every=10, checkpoint_every=10, log_every=1,
    ),
    "gpt2": TrainConfig(
        preset="gpt2", vocab_size=50304, layers=12, heads=12, width=768, context=1024, tokens_per_update=524288,
        micro_batch_size=16, steps=2000, learning_rate=6e-4, final_learning_rate=6e-5, warmup_steps=200,
        validate_every=250, validation_windows=512, checkpoint_every=500,
    ),
}  # fmt: skip


def train(config: TrainConfig) -> None:
    """One rank's part of the run. Returns when the last step is done, or when a stop was asked for."""
    # DDP 1/6: join the other processes and take the device that belongs to this one.
    world = process_group.start(config.timeout_seconds, config.device)
    accumulation_steps = micro_steps_per_update(config, world.size)
    precision = from_rank_0(world, lambda: choose_precision(config.precision, world))
    choose_attention(precision, world.device, config.context)
    run_directory, checkpoint = open_run(world, config.run_dir, config.resume, kind="minigpt")

    # One rank prepares the token file and all map it: nobody reads a file that another is still writing.
    tokens = open_tokens(from_rank_0(world, lambda: prepare(config.data, config.tokenizer, config.vocab_size)))
    assert_same_value(world, "the token file", tokens.fingerprint)
    window_starts(config.seed, 0, 1, len(tokens.train), config.context)  # refuses a text shorter than the context

    process_group.seed_shared(config.seed)
    shape = MiniGPTConfig(
        vocab_size=tokens.tokenizer.vocab_size, context=config.context, layers=config.layers, heads=config.heads,
        width=config.width, dropout=config.dropout, activation_checkpointing=config.activation_checkpointing,
    )  # fmt: skip
    model = MiniGPT(shape).to(world.device, parameter_dtype(precision))
    optimizer = make_adamw(model, config.learning_rate, config.weight_decay)
    scaler = torch.amp.GradScaler(world.device.type, enabled=precision == "float16")
    process_group.seed_rank(config.seed, world.rank)

    identity = {name: getattr(config, name) for name in IDENTITY}
    identity |= {"precision": precision, "data and tokenizer": tokens.fingerprint}
    state = TrainingState({"model": model, "optimizer": optimizer, "scaler": scaler}, identity)
    step = state.restore(world, checkpoint) if checkpoint else 0
    if step >= config.steps:
        world.say(f"nothing left to do: step {step} of {config.steps} is done; --steps takes the run further")
        return
    settings = asdict(config) | {"precision": precision, "world_size": world.size}
    run_directory.begin(step, settings)
    settings["tokenizer_state"] = tokens.tokenizer.state()  # a checkpoint reads and writes text on its own

    # DDP 2/6: the wrapper copies rank 0's weights to all and averages the gradients in every backward.
    replica = model if world.size == 1 else DistributedDataParallel(model, gradient_as_bucket_view=True)
    if config.compile:
        replica.compile()
    if world.size > 1:  # DDP's first backward adds up in another order than all later ones: a resume would show it
        nothing = torch.zeros(config.micro_batch_size, config.context, dtype=torch.int64, device=world.device)
        with autocast(precision, world.device):
            settle_bucket_order(replica, nothing, nothing)

    world.say(
        f"{parameter_count(shape):,} parameters; {len(tokens.train):,} training tokens; {precision} on {world.device}\n"
        f"{config.tokens_per_update:,} tokens an update = {world.size} rank(s) x {accumulation_steps} "
        f"micro-batch(es) x {config.micro_batch_size} windows x {config.context} tokens"
    )
    progress = Progress(
        run_directory, first_step=step, last_step=config.steps, per_update=config.tokens_per_update, unit="tokens",
        log_every=config.log_every, tensorboard=config.tensorboard,
    )  # fmt: skip
    stop_request = StopRequest(world, config.max_seconds)
    stopping = False
    while step < config.steps and not stopping:
        learning_rate = warmup_cosine(
            step, config.steps, config.warmup_steps, config.learning_rate, config.final_learning_rate
        )
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        loss_sum = torch.zeros((), device=world.device, dtype=torch.float64)
        # DDP 3/6: each rank takes its own windows of one joint batch, which is the same at any world size.
        batches = micro_batches(
            tokens.train, seed=config.seed, update=step, context=config.context, rank=world.rank,
            world_size=world.size, micro_batch_size=config.micro_batch_size, accumulation_steps=accumulation_steps,
        )  # fmt: skip
        for micro_step, (inputs, targets) in enumerate(batches):
            # DDP 4/6: only the last micro-batch needs to talk; the forward pass must be under no_sync as well.
            silent = micro_step < accumulation_steps - 1 and world.size > 1
            with replica.no_sync() if silent else contextlib.nullcontext():
                with autocast(precision, world.device):
                    loss = replica(inputs.to(world.device), targets.to(world.device))
                # DDP divides the sum of the ranks' gradients by the world size. We want the mean over the tokens.
                scaler.scale(loss * (world.size / config.tokens_per_update)).backward()
            loss_sum += loss.detach()
        scaler.unscale_(optimizer)  # the limit below is meant for true gradients, not for scaled ones
        gradient_norm = clip_grad_norm_(model.parameters(), config.gradient_clip or math.inf)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        step += 1

        # DDP 5/6: a number is summed over the ranks before anybody prints it or acts on it.
        loss_sum, ranks_asked = sum_over_ranks(world, loss_sum, stop_request.asked())
        stopping = ranks_asked > 0
        loss = loss_sum / config.tokens_per_update
        progress.step(step, loss=loss, lr=learning_rate, grad_norm=gradient_norm.item())
        with progress.paused():
            if stopping:  # before anything else: who asked may not wait for a validation
                state.save(world, run_directory.path, step, settings, keep=config.keep_checkpoints)
            if is_due(step, config.validate_every, config.steps):
                progress.validation(step, loss=validate(model, tokens, config, precision, world))
            if is_due(step, config.checkpoint_every, config.steps) and not stopping:
                state.save(world, run_directory.path, step, settings, keep=config.keep_checkpoints)
    progress.close()

    assert_replicas_equal(world, model)
    if stopping and step < config.steps:
        world.say(f"stopped after step {step}: {stop_request.reason or 'another rank was asked to'}; "
                  f"go on with --run-dir {run_directory.path} --resume auto")  # fmt: skip
    # DDP 6/6: one rank writes and speaks for all. No collective follows, so nobody waits for it.
    elif world.is_main:
        print(f"\nfirst loss {progress.first['loss']:.4f}, last loss {progress.last['loss']:.4f}, validation loss "
              f"{progress.validated['loss']:.4f}, {progress.per_second:,.0f} tokens/s", flush=True)  # fmt: skip
        if config.sample_tokens:
            text = sample(model, tokens, config, precision, world.device)
            run_directory.add_sample(step, text)
            print(f"the model writes:\n{text}\n", flush=True)
        print(f"run directory: {run_directory.path}", flush=True)


def micro_steps_per_update(config: TrainConfig, world_size: int) -> int:
    """How many micro-batches a rank accumulates, so that an update holds the same tokens at any world size."""
    together = config.micro_batch_size * config.context * world_size
    steps, rest = divmod(config.tokens_per_update, together)
    if rest:
        nearest = " or ".join(f"{n * together:,}" for n in (steps, steps + 1) if n)
        raise InputError(
            f"--tokens-per-update {config.tokens_per_update:,} is not a multiple of {world_size} rank(s) x "
            f"{config.micro_batch_size} windows x {config.context} tokens = {together:,}; nearest that are: {nearest}"
        )
    return steps


@torch.no_grad()
def validate(model: MiniGPT, tokens: Tokens, config: TrainConfig, precision: str, world: World) -> float:
    """Mean loss of a held-out token, the same at any world size: each rank does its share, sum and count are reduced.

    It runs the bare model, not the DDP wrapper: ranks may have different numbers of batches.
    """
    model.eval()
    loss_sum, count = 0.0, 0
    for inputs, targets in validation_batches(
        tokens.val, context=config.context, batch_size=config.micro_batch_size,
        rank=world.rank, world_size=world.size, max_windows=config.validation_windows,
    ):  # fmt: skip
        with autocast(precision, world.device):
            loss_sum += model(inputs.to(world.device), targets.to(world.device)).item()
        count += int((targets != IGNORED).sum())
    model.train()
    loss_sum, count = sum_over_ranks(world, loss_sum, count)
    return loss_sum / count


def sample(model: MiniGPT, tokens: Tokens, config: TrainConfig, precision: str, device: torch.device) -> str:
    """Text that the model writes after a prompt from the start of the held-out text."""
    prompt = torch.from_numpy(tokens.val[: min(16, config.context)].astype("int64"))[None].to(device)
    generator = torch.Generator(device).manual_seed(config.seed)
    with autocast(precision, device):
        return tokens.tokenizer.decode(generate(model, prompt, config.sample_tokens, generator=generator)[0].tolist())


if __name__ == "__main__":
    run(train, PRESETS)
