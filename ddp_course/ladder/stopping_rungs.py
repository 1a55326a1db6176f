"""Rungs about a run that stops and resumes, with the same number of processes or another."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course.checkpoint import checkpoint
from ddp_course.checkpoint.training_state import TrainingState
from ddp_course.distributed.bucket_order import settle_bucket_order
from ddp_course.distributed.process_group import World, seed_rank
from ddp_course.distributed.sync import from_rank_0
from ddp_course.ladder.comparison import (
    Comparison,
    Rung,
    Weights,
    batches,
    compute_gradients,
    largest_gap,
    sgd,
    train,
    train_reference,
    weights,
)
from ddp_course.ladder.models import build
from ddp_course.ladder.setting import DROPOUT, Setting, global_batch, target_count
from ddp_course.ladder.tolerance import REORDERED


def resume(setting: Setting, world: World) -> Comparison:
    """Stop half-way, rebuild everything, resume from the checkpoint; with dropout, bit-equal to a run without stop."""
    half = setting.steps // 2
    legs = [range(half), range(half, setting.steps)]
    resumed = train_in_legs(setting, world, legs)
    uninterrupted_dropout = train_in_legs(setting, world, [range(setting.steps)], DROPOUT)
    resumed_dropout = train_in_legs(setting, world, legs, DROPOUT)
    bit_equal = all(largest_gap(a, b) == 0 for a, b in zip(uninterrupted_dropout, resumed_dropout, strict=True))
    reference = train_reference(build(setting), batches(setting))
    return Comparison(resumed, reference, {"with dropout, bit-equal to an uninterrupted run": bit_equal})


def another_size(setting: Setting, world: World) -> Comparison:
    """All ranks, then half of them, then all again; each leg resumes from the checkpoint of the previous leg."""
    half = max(1, world.size // 2)
    half_group = dist.new_group(list(range(half)))
    first, second = setting.steps // 3, 2 * setting.steps // 3
    with shared_folder(world) as folder:
        history = train_leg(setting, world, folder, range(first))
        history += train_leg(setting, world, folder, range(first, second), ranks=half, group=half_group)[1:]
        history += train_leg(setting, world, folder, range(second, setting.steps))[1:]
    dist.destroy_process_group(half_group)
    return Comparison(history, train_reference(build(setting), batches(setting)))


def train_in_legs(setting: Setting, world: World, legs: list[range], dropout: float = 0.0) -> list[Weights]:
    """Train in legs, each from the checkpoint of the previous one; returns the weights before the first step and after
    each."""
    with shared_folder(world) as folder:
        first, *others = [train_leg(setting, world, folder, steps, dropout=dropout) for steps in legs]
    return first + [snapshot for history in others for snapshot in history[1:]]


def train_leg(
    setting: Setting,
    world: World,
    folder: Path,
    steps: range,
    *,
    dropout: float = 0.0,
    ranks: int | None = None,
    group: dist.ProcessGroup | None = None,
) -> list[Weights | None]:
    """Take `steps` on the first `ranks` ranks, from the newest checkpoint in `folder`, and save a checkpoint.

    Returns the weights before the first step and after each. The other ranks wait for the checkpoint and have its
    weights as the last ones, None for the steps before.
    """
    model = build(setting, dropout=dropout)
    optimizer = sgd(model.parameters())
    seed_rank(setting.seed, world.rank)
    state = TrainingState({"model": model, "optimizer": optimizer}, identity={"seed": setting.seed})
    if saved := checkpoint.newest_valid(folder):
        state.restore(world, saved)
    active_world = replace(world, size=ranks or world.size)
    is_active = world.rank < active_world.size
    if is_active:
        replica = DDP(model, process_group=group)
        settle_bucket_order(replica, *global_batch(setting, 0))

        def gradients(step: int) -> None:
            batch = global_batch(setting, step)
            compute_gradients(setting, active_world, replica, batch, target_count(batch))

        history = train(model, steps, gradients, lambda _: optimizer)
    else:
        history = [weights(model)]
    state.save(world, folder, steps.stop, {}, keep=0)
    if not is_active:
        state.restore(world, checkpoint.newest_valid(folder))
        history += [None] * (len(steps) - 1) + [weights(model)]
    return history


@contextlib.contextmanager
def shared_folder(world: World) -> Iterator[Path]:
    """A temporary folder that all ranks share (collective); deleted at the end."""
    folder = Path(from_rank_0(world, lambda: tempfile.mkdtemp(prefix="ddp_course_ladder_")))
    try:
        yield folder
        dist.barrier()
    finally:
        if world.is_main:
            shutil.rmtree(folder, ignore_errors=True)


RUNGS = [
    Rung("resume", "stop and go on", resume, REORDERED),
    Rung("another world size", "stop and go on", another_size, REORDERED),
]
