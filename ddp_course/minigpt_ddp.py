"""Pre-train MiniGPT on one process or on many, on CPUs or on GPUs. Run on CPUs so far.

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
from typing import Annotated, Literal

import torch
from torch.nn.utils import clip_grad_norm_

from ddp_course.checkpoint.run_directory import open_run
from ddp_course.checkpoint.training_state import TrainingState
from ddp_course.data.token_file import Tokens
from ddp_course.distributed import process_group
from ddp_course.distributed.bucket_order import wrap
from ddp_course.distributed.replica_check import assert_replicas_equal
from ddp_course.models import minigpt
from ddp_course.models.minigpt import MiniGPT, generate, parameter_count
from ddp_course.trainers.pretraining import (
    TINY,
    PretrainingConfig,
    batch_bytes,
    count_gradient_accumulation_steps,
    make_identity,
    make_model_config,
    micro_batches,
    open_text,
    results,
    validate,
)
from ddp_course.training.command_line import run
from ddp_course.training.loop import TrainingLoop
from ddp_course.training.memory import require_memory, training_bytes
from ddp_course.training.optimization import make_adamw, set_learning_rate
from ddp_course.training.precision import autocast, choose_precision, parameter_dtype, set_matmul_precision
from ddp_course.training.process import prepare_process
from ddp_course.training.settings import between
from ddp_course.training.throughput import peak_per_second


@dataclass(frozen=True)
class TrainConfig(PretrainingConfig):
    """Pre-train MiniGPT. The same flags mean the same run at any number of processes, if --precision names a format."""

    preset: Literal["laptop", "tiny", "gpt2"] = "laptop"
    """A named set of values; every other flag changes it. tiny: seconds. laptop: minutes. gpt2: GPUs."""
    precision: Literal["auto", "float32", "tf32", "bfloat16", "float16", "float64"] = "auto"
    """The number format of matrix products; weights stay float32 (float64 for float64). auto: what is fastest here."""
    compile: bool = False
    """Compile the model with torch.compile: a minute of waiting, then steps that may be faster."""
    sample_tokens: Annotated[int, between(0, 1_000_000)] = 120
    """Tokens of text written by the model at the end; 0 writes none."""


PRESETS = {
    "laptop": TrainConfig(),
    "tiny": TrainConfig(**TINY),
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
    """Train as one rank, to the last step or until a stop was asked for; returns the exit code."""
    # DDP 1/6: join the other processes and take the device that belongs to this one.
    world = process_group.start(config.timeout_seconds, config.device)
    gradient_accumulation_steps = count_gradient_accumulation_steps(config, world.size)
    run_directory, checkpoint = open_run(world, config.run_dir, config.resume, kind="minigpt")
    tokens, windows = open_text(world, config, run_directory)

    process_group.seed_shared(config.seed)
    model_config = make_model_config(config, tokens)
    need = training_bytes(parameter_count(model_config), parameter_dtype(config.precision))
    require_memory(world, "this training run", need + batch_bytes(config, model_config))
    arithmetic = choose_precision(
        world,
        config.precision,
        config.context,
        run_directory.resumed_settings,
        lambda: minigpt.attention_trial(model_config, config.micro_batch_size, world.device),
    )
    precision = arithmetic.precision
    set_matmul_precision(precision)
    model = MiniGPT(model_config, arithmetic.attention).to(world.device, parameter_dtype(precision))
    optimizer = make_adamw(model, config.learning_rate, config.weight_decay)
    scaler = torch.amp.GradScaler(world.device.type, enabled=precision == "float16")
    process_group.seed_rank(config.seed, world.rank)

    parts = {"model": model, "optimizer": optimizer, "scaler": scaler}
    loop = TrainingLoop(run_directory, config, TrainingState(parts, make_identity(config, tokens, precision)))
    settings = asdict(arithmetic) | {"token_file": str(tokens.folder)}
    if not loop.begin(checkpoint, settings, {"tokenizer_state": tokens.tokenizer.state()}):
        return 0

    # DDP 2/6: the wrapper copies rank 0's weights to all and averages the gradients in every backward pass.
    window = torch.zeros(config.micro_batch_size, config.context, dtype=torch.int64, device=world.device)
    with autocast(precision, world.device):
        ddp_model = wrap(world, torch.compile(model) if config.compile else model, window, window)
    world.say(
        f"{parameter_count(model_config):,} parameters; {len(tokens.train):,} training tokens{windows.description}; "
        f"{precision} on {world.device}\n{config.tokens_per_update:,} tokens per update = {world.size} rank(s) x "
        f"{gradient_accumulation_steps} micro-batch(es) x {config.micro_batch_size} windows x {config.context} tokens"
    )
    # DDP 3/6: each rank takes its own windows of one global batch, which is the same at any world size.
    steps = range(loop.step, config.steps)
    batches = micro_batches(windows, config, steps, rank=world.rank, world_size=world.size, device=world.device)
    peak = peak_per_second(world, precision, minigpt.flops_per_token(model_config))
    for step in loop.steps(unit="tokens", per_step=config.tokens_per_update, peak=peak):
        learning_rate = config.learning_rate_at(step)
        set_learning_rate(optimizer, learning_rate)
        loss_sum = torch.zeros((), device=world.device, dtype=torch.float64)
        target_count = windows.targets(step)  # of all ranks
        for micro_step in range(gradient_accumulation_steps):
            if micro_step and loop.abandons_step():
                break
            inputs, targets = next(batches)
            # DDP 4/6: only the last micro-batch needs an all-reduce; no_sync has to cover the forward pass as well.
            accumulates = micro_step < gradient_accumulation_steps - 1 and world.size > 1
            with ddp_model.no_sync() if accumulates else contextlib.nullcontext():
                with autocast(precision, world.device):
                    loss = ddp_model(inputs, targets)
                # DDP divides the sum of the ranks' gradients by the world size. We want the mean over the tokens.
                scaler.scale(loss * (world.size / target_count)).backward()
            loss_sum += loss.detach()
        if loop.abandoned:
            continue
        scaler.unscale_(optimizer)  # the limit below is meant for true gradients, not for scaled ones
        gradient_norm = clip_grad_norm_(model.parameters(), config.gradient_clip or math.inf)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if loop.passes(config.check_every):
            assert_replicas_equal(world, model, optimizer, own_random_state=True, step=step + 1)

        # DDP 5/6: a number is summed over the ranks before anybody prints it or acts on it.
        [total_loss] = loop.sum_over_ranks(loss_sum)
        loop.report(
            loss_sum,
            loss=total_loss / target_count,
            learning_rate=learning_rate,
            grad_norm=gradient_norm.item(),
            **windows.metrics(target_count),
        )
        loop.save_and_validate(lambda: {"loss": validate(model, tokens, config, precision, world)})

    assert_replicas_equal(world, model)
    if loop.stopped_early:
        return loop.leave()
    # DDP 6/6: only rank 0 writes and prints. No collective follows, so no rank waits for it.
    if world.is_main:
        print(results(loop.progress), flush=True)
        if config.sample_tokens:
            run_directory.add_sample(loop.step, text := sample(model, tokens, config, precision, world.device))
            print(f"the model writes:\n{text}\n", flush=True)
        print(f"run directory: {run_directory.path}", flush=True)
    return 0


def sample(model: MiniGPT, tokens: Tokens, config: TrainConfig, precision: str, device: torch.device) -> str:
    """Text that the model writes after a prompt from the start of the held-out text."""
    prompt = torch.from_numpy(tokens.val[: min(16, config.context)].astype("int64"))[None].to(device)
    generator = torch.Generator(device).manual_seed(config.seed)
    with autocast(precision, device):
        return tokens.tokenizer.decode(generate(model, prompt, config.sample_tokens, generator=generator)[0].tolist())


if __name__ == "__main__":
    prepare_process()
    run(train, PRESETS)
