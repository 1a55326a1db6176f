"""Rungs about a run that stops and goes on: with as many processes, or with another number."""

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
    alone,
    batches,
    ddp,
    largest_gap,
    one_update,
    sgd,
    weights,
)
from ddp_course.ladder.setting import Setting, global_batch, target_count
from ddp_course.ladder.subjects import build
from ddp_course.ladder.tolerance import REORDERED, reordered

DROPOUT = 0.2


def resume(setting: Setting, world: World) -> Comparison:
    """Stop half-way, throw everything away, go on from the checkpoint: the run that never stopped, bit for bit."""
    half = setting.steps // 2
    with shared_folder(world) as folder:
        stopped = leg(setting, world, folder, range(half)) + leg(setting, world, folder, range(half, setting.steps))[1:]
    with shared_folder(world) as folder:
        never = leg(setting, world, folder, range(setting.steps), dropout=DROPOUT)
    with shared_folder(world) as folder:
        masked = leg(setting, world, folder, range(half), dropout=DROPOUT)
        masked += leg(setting, world, folder, range(half, setting.steps), dropout=DROPOUT)[1:]
    same = all(largest_gap(a, b) == 0 for a, b in zip(never, masked, strict=True))
    one = alone(build(setting), batches(setting))
    return Comparison(stopped, one, {"with dropout, bit-equal to the run that never stopped": same})


def another_size(setting: Setting, world: World) -> Comparison:
    """All ranks, then half of them, then all again; each leg goes on from the checkpoint of the one before."""
    half = max(1, world.size // 2)
    few = dist.new_group(list(range(half)))
    first, second = setting.steps // 3, 2 * setting.steps // 3
    with shared_folder(world) as folder:
        several = leg(setting, world, folder, range(first))
        several += leg(setting, world, folder, range(first, second), ranks=half, group=few)[1:]
        several += leg(setting, world, folder, range(second, setting.steps))[1:]
    dist.destroy_process_group(few)
    return Comparison(several, alone(build(setting), batches(setting)))


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
    """Do these updates on the first `ranks` ranks, from the newest checkpoint of `folder`, and leave one there.

    Ranks that have no part in it wait for that checkpoint and return its weights, and None for the updates before.
    """
    model = build(setting, dropout=dropout)
    optimizer = sgd(model.parameters())
    seed_rank(setting.seed, world.rank)
    state = TrainingState({"model": model, "optimizer": optimizer}, identity={"seed": setting.seed})
    if saved := checkpoint.newest_valid(folder):
        state.restore(world, saved)
    history, team = [weights(model)], World(world.rank, world.local_rank, ranks or world.size, world.device)
    if world.rank < team.size:
        replica = ddp(model, process_group=group)
        settle_bucket_order(replica, *global_batch(setting, 0))
        for update in updates:
            joint = global_batch(setting, update)
            one_update(setting, team, replica, optimizer, joint, target_count(joint))
            history.append(weights(model))
    state.save(world, folder, updates.stop, {}, keep=0)
    if world.rank >= team.size:
        state.restore(world, checkpoint.newest_valid(folder))
        history += [None] * (len(updates) - 1) + [weights(model)]
    return history


@contextlib.contextmanager
def shared_folder(world: World) -> Iterator[Path]:
    """A folder for the checkpoints of all ranks, gone when the last of them has left it (collective)."""
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
