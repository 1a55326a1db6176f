"""Pre-train MiniGPT on one process or on many, on CPUs or on GPUs.

    python ddp_course/minigpt_ddp.py --preset tiny                                          # one process
    torchrun --standalone --nproc-per-node=2 ddp_course/minigpt_ddp.py --preset laptop      # two
    torchrun ... ddp_course/minigpt_ddp.py --run-dir runs/mine --resume auto                # go on after a stop

Read it from `train` downwards. What turns a one-process trainer into this one is marked DDP 1/6 to DDP 6/6.
"""

if __name__ == "__main__":
    from ddp_course.base.command import begin_command

    begin_command()  # before torch is imported: from here on Ctrl-C is one line

import contextlib
import math
from dataclasses import asdict, dataclass
from typing import Literal

import torch
from torch.nn.utils import clip_grad_norm_

from ddp_course.base.errors import InputError
from ddp_course.checkpoint.run_directory import open_run
from ddp_course.checkpoint.training_state import TrainingState
from ddp_course.data.packing import PackedWindows, StreamWindows
from ddp_course.data.token_file import Tokens, open_tokens, prepare
from ddp_course.data.windows import IGNORED, validation_batches
from ddp_course.distributed import process_group
from ddp_course.distributed.bucket_order import wrap
from ddp_course.distributed.process_group import World
from ddp_course.distributed.replica_check import assert_replicas_equal
from ddp_course.distributed.sync import assert_same_value, from_rank_0, sum_over_ranks
from ddp_course.models import minigpt
from ddp_course.models.minigpt import MiniGPT, MiniGPTConfig, generate, parameter_count
from ddp_course.training.command_line import run
from ddp_course.training.memory import require_memory, training_bytes
from ddp_course.training.optimization import is_due, make_adamw, set_learning_rate
from ddp_course.training.precision import autocast, parameter_dtype, settle_arithmetic
from ddp_course.training.progress import Progress
from ddp_course.training.settings import RunSettings, check_ranges
from ddp_course.training.stop_request import StopRequest
from ddp_course.training.throughput import copied_ahead, peak_per_second

IDENTITY = ("layers", "heads", "width", "context", "tokens_per_update", "seed")  # what a resumed run may not change


@dataclass(frozen=True)
class TrainConfig(RunSettings):
    """Pre-train MiniGPT. The same flags mean the same training run at any number of processes."""

    preset: Literal["laptop", "tiny", "gpt2"] = "laptop"
    """A named set of values; every other flag changes it. tiny: seconds. laptop: minutes. gpt2: GPUs."""
    weight_decay: float = 0.1
    compile: bool = False
    """Compile the model with torch.compile: a minute of waiting, then updates that may be faster."""

    data: str = "stdlib"
    """What to read: stdlib (Python's sources), shakespeare (a download), or a file or folder of text or of tokens."""
    tokenizer: str = "bpe"
    """How text becomes tokens: bytes, bpe or rustbpe, or the folder of an existing tokenizer (tokenizer.json)."""
    vocab_size: int | None = 2048
    """Tokens in the vocabulary; None leaves it to the tokenizer (bytes: always 256)."""
    pack: bool = False
    """Windows of whole documents, some of them not quite full, instead of windows cut out of the stream of tokens."""
    tokens_per_update: int = 4096
    """Tokens of one update, over all ranks and micro-batches: the constant of the run."""
    micro_batch_size: int = 4
    """Windows that one rank takes through the model at a time."""
    validation_windows: int | None = 64
    """Windows of a validation, spread evenly over the held-out text; None takes all of it."""
    sample_tokens: int = 120
    """Tokens of text written by the model at the end; 0 writes none."""
    check_every: int = 0
    """Updates between comparisons of weights, optimizer and random state over the ranks. 0: weights, at the end."""
    layers: int = 4
    """Transformer blocks."""
    heads: int = 4
    """Attention heads per block."""
    width: int = 256
    """Units of the residual stream."""
    context: int = 128
    """Tokens per window."""
    dropout: float = 0.0
    """Probability of dropping a unit."""
    activation_checkpointing: bool = False
    """Recompute activations in backward: less memory, about a third more time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = "layers", "heads", "width", "context", "tokens_per_update", "micro_batch_size", "validation_windows"
        check_ranges(self, at_least_1=sizes, at_least_0=("sample_tokens", "check_every"))
        if not 0 <= self.dropout < 1:
            raise ValueError(f"--dropout must be a probability from 0 to below 1, not {self.dropout}")
        if self.width % self.heads:
            raise ValueError(f"--width {self.width} does not divide into --heads {self.heads} of equal size")


PRESETS = {
    "laptop": TrainConfig(),
    "tiny": TrainConfig(
        preset="tiny",
        tokenizer="bytes",
        vocab_size=None,
        layers=2,
        heads=2,
        width=64,
        context=64,
        tokens_per_update=2048,
        micro_batch_size=8,
        steps=20,
        warmup_steps=2,
        precision="float32",
        validate_every=10,
        checkpoint_every=10,
        log_every=1,
    ),
    "gpt2": TrainConfig(
        preset="gpt2",
        vocab_size=50304,
        layers=12,
        heads=12,
        width=768,
        context=1024,
        steps=2000,
        tokens_per_update=524288,
        micro_batch_size=16,
        learning_rate=6e-4,
        warmup_steps=200,
        validate_every=250,
        validation_windows=512,
        checkpoint_every=500,
    ),
}


def train(config: TrainConfig) -> int:
    """One rank\'s part of the run, to the last step or until a stop was asked for; returns the exit code."""
    # DDP 1/6: join the other processes and take the device that belongs to this one.
    world = process_group.start(config.timeout_seconds, config.device)
    accumulation_steps = micro_steps_per_update(config, world.size)
    run_directory, checkpoint = open_run(world, config.run_dir, config.resume, kind="minigpt")

    # One rank prepares the token file and all map it: nobody reads a file that another is still writing.
    tokens = open_tokens(
        from_rank_0(
            world,
            lambda: prepare(config.data, config.tokenizer, config.vocab_size, resumed_settings=run_directory.before),
        )
    )
    assert_same_value(world, "the token file", tokens.fingerprint)
    of_run = tokens.train, tokens.tokenizer.end_of_text, config.context, config.seed, config.tokens_per_update
    windows = PackedWindows(*of_run) if config.pack else StreamWindows(*of_run)  # refuses a text shorter than a window
    process_group.seed_shared(config.seed)
    shape = MiniGPTConfig(
        vocab_size=tokens.tokenizer.vocab_size,
        context=config.context,
        layers=config.layers,
        heads=config.heads,
        width=config.width,
        dropout=config.dropout,
        activation_checkpointing=config.activation_checkpointing,
    )
    need = training_bytes(parameter_count(shape), parameter_dtype(config.precision))
    need += minigpt.activation_bytes(shape, config.micro_batch_size) + 8 * config.tokens_per_update // config.context
    require_memory(world, "this training run", need)
    arithmetic = settle_arithmetic(
        world,
        config.precision,
        config.context,
        run_directory.before,
        lambda: minigpt.piece_of_a_step(shape, config.micro_batch_size, world.device),
    )
    precision = arithmetic.precision
    model = MiniGPT(shape).to(world.device, parameter_dtype(precision))
    optimizer = make_adamw(model, config.learning_rate, config.weight_decay)
    scaler = torch.amp.GradScaler(world.device.type, enabled=precision == "float16")
    process_group.seed_rank(config.seed, world.rank)
    identity = {name: getattr(config, name) for name in IDENTITY}
    identity |= {"precision": precision, "data and tokenizer": tokens.fingerprint + " packed" * config.pack}
    state = TrainingState({"model": model, "optimizer": optimizer, "scaler": scaler}, identity)
    step = state.restore(world, checkpoint) if checkpoint else 0
    if step >= config.steps:
        world.say(f"nothing left to do: step {step} of {config.steps} is done; --steps takes the run further")
        return 0
    settings = asdict(config) | asdict(arithmetic) | {"world_size": world.size, "token_file": str(tokens.folder)}
    settings = run_directory.begin(step, settings)
    settings["tokenizer_state"] = tokens.tokenizer.state()  # a checkpoint reads and writes text on its own

    # DDP 2/6: the wrapper copies rank 0's weights to all and averages the gradients in every backward pass.
    window = torch.zeros(config.micro_batch_size, config.context, dtype=torch.int64, device=world.device)
    with autocast(precision, world.device):
        replica = wrap(world, model, window, window)
    if config.compile:
        replica.compile()
    world.say(
        f"{parameter_count(shape):,} parameters; {len(tokens.train):,} training tokens{windows.described}; "
        f"{precision} on {world.device}\n{config.tokens_per_update:,} tokens per update = {world.size} rank(s) x "
        f"{accumulation_steps} micro-batch(es) x {config.micro_batch_size} windows x {config.context} tokens"
    )
    progress = Progress(
        run_directory,
        config,
        first_step=step,
        per_update=config.tokens_per_update,
        unit="tokens",
        peak=peak_per_second(world, precision, minigpt.flops_per_token(shape)),
    )
    stop_request, stopping = StopRequest(world, config), False
    # DDP 3/6: each rank takes its own windows of one global batch, which is the same at any world size.
    batches = copied_ahead(
        (
            batch
            for update in range(step, config.steps)
            for batch in windows.micro_batches(
                update=update,
                rank=world.rank,
                world_size=world.size,
                micro_batch_size=config.micro_batch_size,
                accumulation_steps=accumulation_steps,
            )
        ),
        world.device,
    )
    while step < config.steps and not stopping:
        learning_rate = config.learning_rate_at(step)
        set_learning_rate(optimizer, learning_rate)
        loss_sum = torch.zeros((), device=world.device, dtype=torch.float64)
        target_count = windows.targets(step)  # of all ranks together
        for micro_step in range(accumulation_steps):
            inputs, targets = next(batches)
            # DDP 4/6: only the last micro-batch needs an all-reduce; no_sync has to cover the forward pass as well.
            silent = micro_step < accumulation_steps - 1 and world.size > 1
            with replica.no_sync() if silent else contextlib.nullcontext():
                with autocast(precision, world.device):
                    loss = replica(inputs, targets)
                # DDP divides the sum of the ranks' gradients by the world size. We want the mean over the tokens.
                scaler.scale(loss * (world.size / target_count)).backward()
            loss_sum += loss.detach()
        scaler.unscale_(optimizer)  # the limit below is meant for true gradients, not for scaled ones
        gradient_norm = clip_grad_norm_(model.parameters(), config.gradient_clip or math.inf)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        step += 1
        if config.check_every and step % config.check_every == 0:
            assert_replicas_equal(world, model, optimizer, own_random_state=True, step=step)

        # DDP 5/6: a number is summed over the ranks before anybody prints it or acts on it.
        total, ranks_asked = sum_over_ranks(world, loss_sum, stop_request.asked())
        stopping = ranks_asked > 0
        progress.step(
            step,
            loss_sum,
            loss=total / target_count,
            learning_rate=learning_rate,
            grad_norm=gradient_norm.item(),
            **windows.logged(target_count),
        )
        with progress.paused():
            # Saved first: who asked the run to stop may not wait for a validation.
            if stopping or is_due(step, config.checkpoint_every, config.steps):
                state.save(world, run_directory.path, step, settings, keep=config.keep_checkpoints)
            if is_due(step, config.validate_every, config.steps):
                progress.validation(step, loss=validate(model, tokens, config, precision, world))
    progress.close()

    assert_replicas_equal(world, model)
    if stopping and step < config.steps:
        return stop_request.leave(step, run_directory.path)
    # DDP 6/6: one rank writes and speaks for all. No collective follows, so nobody waits for it.
    if world.is_main:
        print(
            f"\nfirst loss {progress.first['loss']:.4f}, last loss {progress.last['loss']:.4f}, validation loss "
            f"{progress.validated['loss']:.4f}, {progress.per_second:,.0f} tokens/s",
            flush=True,
        )
        if config.sample_tokens:
            run_directory.add_sample(step, text := sample(model, tokens, config, precision, world.device))
            print(f"the model writes:\n{text}\n", flush=True)
        print(f"run directory: {run_directory.path}", flush=True)
    return 0


def micro_steps_per_update(config: TrainConfig, world_size: int) -> int:
    """How many micro-batches a rank accumulates, so that an update holds the same tokens at any world size."""
    together = config.micro_batch_size * config.context * world_size
    steps, rest = divmod(config.tokens_per_update, together)
    if rest:
        nearest = " or ".join(f"{n * together:,}" for n in (steps, steps + 1) if n)
        raise InputError(
            f"--tokens-per-update {config.tokens_per_update:,} is not a multiple of {world_size} rank(s) "
            f"x {config.micro_batch_size} windows x {config.context} tokens = {together:,}; nearest that "
            f"are: {nearest}"
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
        tokens.val,
        context=config.context,
        batch_size=config.micro_batch_size,
        rank=world.rank,
        world_size=world.size,
        max_windows=config.validation_windows,
    ):
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
