"""Pre-train MiniGPT on a mesh of ranks: replicas, shards, parts of each window, of each layer, and stages.

    torchrun --standalone --nproc-per-node=4 ddp_course/parallel_ddp.py --preset tiny --pp 2 --tp 2
    torchrun --standalone --nproc-per-node=8 ddp_course/parallel_ddp.py --dp 2 --shard 2 --cp 2
    torchrun ... ddp_course/parallel_ddp.py --shard 4 --run-dir runs/mine --resume auto     # go on, on another mesh

Read it from `train` downwards, beside minigpt_ddp.py: the same flags train the same model on the same tokens, and each
can go on from the other's checkpoints. What a mesh adds is marked MESH 1/7 to MESH 7/7.
"""

if __name__ == "__main__":
    from ddp_course.base.command import begin_command

    begin_command()  # before torch is imported: from here on Ctrl-C is one line

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ddp_course.base.errors import InputError
from ddp_course.checkpoint.run_directory import open_run
from ddp_course.checkpoint.training_state import TrainingState
from ddp_course.checkpoint.whole_state import WholeModel, WholeOptimizer, names_by_group
from ddp_course.data.token_file import Tokens
from ddp_course.data.windows import IGNORED
from ddp_course.distributed import process_group
from ddp_course.distributed.mesh import Mesh
from ddp_course.distributed.parameter_shards import assert_copies_equal, clip_gradients, parameter_shards
from ddp_course.distributed.pipeline import Pipeline, add_other_end
from ddp_course.distributed.sync import sum_over_ranks
from ddp_course.models import minigpt
from ddp_course.models.minigpt import MiniGPT, parameter_count
from ddp_course.trainers.minigpt_stage import TIED, Stage, check_cuts
from ddp_course.trainers.pretraining import (
    PretrainingSettings,
    begin,
    even_validation_batches,
    identity_of,
    micro_steps_per_update,
    open_text,
    say_results,
    shape_of,
)
from ddp_course.training.command_line import run
from ddp_course.training.memory import require_memory, training_bytes
from ddp_course.training.optimization import is_due, make_adamw, set_learning_rate
from ddp_course.training.precision import autocast, by_rule, parameter_dtype
from ddp_course.training.progress import Progress
from ddp_course.training.settings import check_ranges
from ddp_course.training.stop_request import StopRequest
from ddp_course.training.throughput import peak_per_second


@dataclass(frozen=True)
class ParallelConfig(PretrainingSettings):
    """Pre-train MiniGPT on a mesh of ranks. The same flags mean the same training run on any mesh."""

    pp: int = 1
    """Pipeline: stages, of which each has some of the layers."""
    dp: int = 1
    """Data: replicas, each of which takes some of the windows."""
    shard: int = 1
    """Fully sharded: ranks that take some of the windows and share the storage of the weights."""
    cp: int = 1
    """Context: ranks that take some of the tokens of each window."""
    tp: int = 1
    """Tensor: ranks that take some of the heads and units of each layer."""
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    """In which order a stage takes the forward and backward passes of micro-batches."""

    micro_batch_size: int = 4
    """Windows that one rank takes through its stage at a time."""
    check_every: int = 0
    """Updates between comparisons of the copies that ranks hold of the same weights. 0: at the end."""
    dropout: float = 0.0
    """Must be 0."""
    activation_checkpointing: bool = False
    """Recompute activations in backward: less memory, more time."""

    def __post_init__(self) -> None:
        if self.dropout:
            raise ValueError(
                f"--dropout must be 0, not {self.dropout}: ranks that compute parts of one layer would "
                "need parts of one mask"
            )
        super().__post_init__()
        check_ranges(self, at_least_1=("pp", "dp", "shard", "cp", "tp"), at_least_0=("check_every",))


PRESETS = {
    "laptop": ParallelConfig(),
    "tiny": ParallelConfig(
        preset="tiny",
        tokenizer="bytes",
        vocab_size=None,
        layers=4,
        heads=4,
        width=64,
        context=64,
        tokens_per_update=2048,
        micro_batch_size=2,
        steps=20,
        warmup_steps=2,
        validate_every=10,
        checkpoint_every=10,
        log_every=1,
    ),
}


def train(config: ParallelConfig) -> int:
    """One rank's part of the run, to the last step or until a stop was asked for; returns the exit code."""
    world = process_group.start(config.timeout_seconds, config.device)
    # MESH 1/7: this rank's coordinates, and a group per axis. What cannot be cut is refused before anything is read.
    mesh = Mesh(world, pp=config.pp, dp=config.dp, shard=config.shard, cp=config.cp, tp=config.tp)
    check_cuts(config, mesh)
    accumulation_steps = micro_batches_per_update(config, mesh)
    run_directory, checkpoint = open_run(world, config.run_dir, config.resume, kind="parallel")

    tokens, windows = open_text(world, config, run_directory.before)
    process_group.seed_shared(config.seed)
    shape, dtype, parts = shape_of(config, tokens), parameter_dtype(config.precision), world.size // config.dp
    need = max(parameter_count(shape) * dtype.itemsize, training_bytes(parameter_count(shape) // parts, dtype))
    need += 16 * config.tokens_per_update // mesh.replicas  # the tokens and targets of an update lie here together
    require_memory(world, "this training run", need + 8 * config.tokens_per_update // config.context)
    by_rule(config.precision, world.device, config.context).use()

    # MESH 2/7: every rank makes the same whole model and keeps its stage, heads, units and shards of it.
    whole = MiniGPT(shape).to(world.device, dtype)
    names = names_by_group(whole)
    stage = Stage(whole, mesh)
    del whole
    optimizer = make_adamw(stage, config.learning_rate, config.weight_decay)  # after sharding
    shards = parameter_shards(stage, mesh, TIED)
    identity = identity_of(config, tokens)
    # MESH 3/7: a checkpoint holds whole tensors, so any other mesh can go on from it, and minigpt_ddp.py as well.
    state = TrainingState(
        {
            "model": WholeModel(mesh, shards, names, TIED),
            "optimizer": WholeOptimizer(mesh, shards, names, optimizer),
            "scaler": torch.amp.GradScaler(world.device.type, enabled=False),
        },
        identity,
    )
    step = state.restore(world, checkpoint) if checkpoint else 0
    if step >= config.steps:
        world.say(f"nothing left to do: step {step} of {config.steps} is done; --steps takes the run further")
        return 0
    settings = begin(world, run_directory, config, tokens, step)

    pipeline = Pipeline(stage, mesh.pp, world.device, accumulation_steps, config.schedule)
    held = sum(shard.local.numel() for shard in shards)
    world.say(
        f"{parameter_count(shape):,} parameters, {held:,} of them on rank 0; {len(tokens.train):,} training "
        f"tokens{windows.described}; {config.precision} on {world.device}\nmesh: {mesh}; "
        f"{config.tokens_per_update:,} tokens per update = {mesh.replicas} share(s) x {accumulation_steps} "
        f"micro-batch(es) x {config.micro_batch_size} windows x {config.context} tokens"
    )
    progress = Progress(
        run_directory,
        config,
        first_step=step,
        per_update=config.tokens_per_update,
        unit="tokens",
        peak=peak_per_second(world, config.precision, minigpt.flops_per_token(shape)),
    )
    stop_request, stopping = StopRequest(world, config), False
    while step < config.steps and not stopping:
        learning_rate = config.learning_rate_at(step)
        set_learning_rate(optimizer, learning_rate)
        target_count = windows.targets(step)  # of all ranks together
        # MESH 4/7: windows go by the place on dp and shard; peers on pp, cp and tp take the same ones.
        inputs, targets = together(
            windows.micro_batches(
                update=step,
                rank=mesh.replica,
                world_size=mesh.replicas,
                micro_batch_size=config.micro_batch_size,
                accumulation_steps=accumulation_steps,
            ),
            world.device,
        )
        with autocast(config.precision, world.device):
            # fully_shard averages over dp, shard and cp. We want the mean over the tokens.
            loss_sum = pipeline.forward_backward(inputs, targets, mesh.averaged / target_count)
        # MESH 5/7: both ends of the pipeline hold the tied table, and each has a part of its gradient.
        if mesh.pp.size > 1 and (stage.first or stage.last):
            add_other_end(stage.table.grad, mesh.pp)
        # MESH 6/7: the norm of the whole gradient, of which each rank has pieces and some have copies.
        gradient_norm = clip_gradients(shards, config.gradient_clip or math.inf)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if config.check_every and step % config.check_every == 0:
            assert_copies_equal(world, shards, step)

        # MESH 7/7: tp peers compute the same loss, and only last stages know one. It is counted once.
        counted = loss_sum if mesh.speaks_for_replica else 0.0
        total, ranks_asked = sum_over_ranks(world, counted, stop_request.asked())
        stopping = ranks_asked > 0
        progress.step(
            step,
            counted,
            loss=total / target_count,
            learning_rate=learning_rate,
            grad_norm=gradient_norm,
            **windows.logged(target_count),
        )
        with progress.paused():
            if stopping or is_due(step, config.checkpoint_every, config.steps):
                state.save(world, run_directory.path, step, settings, keep=config.keep_checkpoints)
            if is_due(step, config.validate_every, config.steps):
                progress.validation(step, loss=validate(stage, pipeline, tokens, config, mesh))
    progress.close()

    assert_copies_equal(world, shards)
    if stopping and step < config.steps:
        return stop_request.leave(step, run_directory.path)
    say_results(world, progress, run_directory)
    return 0


def micro_batches_per_update(config: ParallelConfig, mesh: Mesh) -> int:
    """How many micro-batches a rank takes, so that an update holds the same tokens on any mesh."""
    called = f"--dp x --shard = {mesh.replicas}"
    count = micro_steps_per_update(config, mesh.replicas, called)
    if config.schedule == "1f1b" and count < config.pp:
        raise InputError(
            f"--pp {config.pp} stages need as many micro-batches or more, an update has {count}: choose a "
            "smaller --micro-batch-size, or a larger --tokens-per-update"
        )
    return count


def together(batches: Iterator[tuple[Tensor, Tensor]], device: torch.device) -> tuple[Tensor, Tensor]:
    """The micro-batches of an update below each other; the pipeline divides them again."""
    inputs, targets = zip(*batches, strict=True)
    return torch.cat(inputs).to(device), torch.cat(targets).to(device)


def validate(stage: Stage, pipeline: Pipeline, tokens: Tokens, config: ParallelConfig, mesh: Mesh) -> float:
    """Mean loss of a held-out token, the same on any mesh: sum and count are reduced."""
    rows, device = micro_batches_per_update(config, mesh) * config.micro_batch_size, mesh.world.device
    stage.eval()
    loss_sum, count = torch.zeros((), dtype=torch.float64), 0
    for inputs, targets in even_validation_batches(tokens, config, rows, mesh.replica, mesh.replicas):
        with autocast(config.precision, device):
            loss_sum += pipeline.forward(inputs.to(device), targets.to(device)).item()
        count += int((targets != IGNORED).sum())
    stage.train()
    speaks = mesh.speaks_for_replica
    loss_sum, count = sum_over_ranks(mesh.world, loss_sum * speaks, count * speaks / mesh.cp.size)
    return loss_sum / count


if __name__ == "__main__":
    run(train, PRESETS)
