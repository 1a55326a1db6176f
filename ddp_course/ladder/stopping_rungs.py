"""Rungs about a run that stops and resumes: with the same number of processes, or another."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch.distributed as dist

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
    ddp,
    largest_gap,
    sgd,
    train_reference,
    training_step,
    weights,
)
from ddp_course.ladder.setting import Setting, global_batch, target_count
from ddp_course.ladder.subjects import build
from ddp_course.ladder.tolerance import REORDERED, reordered

DROPOUT = 0.2


def resume(setting: Setting, world: World) -> Comparison:
    """Stop half-way, rebuild everything, resume from the checkpoint: bit-equal to the run that never stopped."""
    half = setting.steps // 2
    with shared_folder(world) as folder:
        stopped = leg(setting, world, folder, range(half)) + leg(setting, world, folder, range(half, setting.steps))[1:]
    with shared_folder(world) as folder:
        never = leg(setting, world, folder, range(setting.steps), dropout=DROPOUT)
    with shared_folder(world) as folder:
        masked = leg(setting, world, folder, range(half), dropout=DROPOUT)
        masked += leg(setting, world, folder, range(half, setting.steps), dropout=DROPOUT)[1:]
    same = all(largest_gap(a, b) == 0 for a, b in zip(never, masked, strict=True))
    reference = train_reference(build(setting), batches(setting))
    return Comparison(stopped, reference, {"with dropout, bit-equal to the run that never stopped": same})


def another_size(setting: Setting, world: World) -> Comparison:
    """All ranks, then half of them, then all again; each leg resumes from the checkpoint of the previous leg."""
    half = max(1, world.size // 2)
    few = dist.new_group(list(range(half)))
    first, second = setting.steps // 3, 2 * setting.steps // 3
    with shared_folder(world) as folder:
        weights = leg(setting, world, folder, range(first))
        weights += leg(setting, world, folder, range(first, second), ranks=half, group=few)[1:]
        weights += leg(setting, world, folder, range(second, setting.steps))[1:]
    dist.destroy_process_group(few)
    return Comparison(weights, train_reference(build(setting), batches(setting)))


def leg(
    setting: Setting,
    world: World,
    folder: Path,
    updates: range,
    *,
    dropout: float = 0.0,
    ranks: int | None = None,
    group: dist.ProcessGroup | None = None,
) -> list[Weights | None]:
    """Take these steps on the first `ranks` ranks, from the newest checkpoint of `folder`, and save a checkpoint.

    The other ranks wait for that checkpoint and return its weights, and None for the steps before.
    """
    model = build(setting, dropout=dropout)
    optimizer = sgd(model.parameters())
    seed_rank(setting.seed, world.rank)
    state = TrainingState({"model": model, "optimizer": optimizer}, identity={"seed": setting.seed})
    if saved := checkpoint.newest_valid(folder):
        state.restore(world, saved)
    history, active_world = [weights(model)], World(world.rank, world.local_rank, ranks or world.size, world.device)
    if world.rank < active_world.size:
        replica = ddp(model, process_group=group)
        settle_bucket_order(replica, *global_batch(setting, 0))
        for update in updates:
            batch = global_batch(setting, update)
            training_step(setting, active_world, replica, optimizer, batch, target_count(batch))
            history.append(weights(model))
    state.save(world, folder, updates.stop, {}, keep=0)
    if world.rank >= active_world.size:
        state.restore(world, checkpoint.newest_valid(folder))
        history += [None] * (len(updates) - 1) + [weights(model)]
    return history


@contextlib.contextmanager
def shared_folder(world: World) -> Iterator[Path]:
    """A temporary folder for the checkpoints of all ranks (collective)."""
    folder = Path(from_rank_0(world, lambda: tempfile.mkdtemp(prefix="ddp_course_ladder_")))
    try:
        yield folder
        dist.barrier()
    finally:
        if world.is_main:
            shutil.rmtree(folder, ignore_errors=True)


RUNGS = [
    Rung("resume", "stop and go on", resume, reordered, REORDERED),
    Rung("another world size", "stop and go on", another_size, reordered, REORDERED),
]
