"""Measure checkpoints: seconds per GB of our save and of plain torch.save, and the time that a save blocks training.

    torchrun --standalone --nproc-per-node=2 benchmarks/checkpoint_cost.py [--rounds 5]

Prints one JSON object of lists. The first four have SAVES numbers per round, the others one:
    over_plain                   seconds of our save (atomic, checksummed, flushed) over those of plain torch.save
    over_plain_and_flushed       the same over torch.save followed by fsync, so that both have reached the disk
    seconds_per_gb               of our save
    plain_seconds_per_gb         of plain torch.save
    background_over_synchronous  training time lost to a distributed save in the background over one that blocks
    synchronous_stall            seconds of training lost to a save that blocks
    background_stall             seconds of training lost to a save in the background, until it has finished
    background_call              seconds until the call that starts the save in the background has returned
"""

import argparse
import functools
import itertools
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from measure import divide, in_turns
from torch.nn.parallel import DistributedDataParallel
from workload import WORKLOAD, optimizer

from ddp_course.checkpoint import checkpoint, distributed_checkpoint
from ddp_course.distributed import process_group
from ddp_course.distributed.sync import from_rank_0
from ddp_course.models.minigpt import MiniGPT

SAVES = 3  # of each kind in a round: the disk delays some saves of every kind
STEPS, SAVE_AT = 24, 8  # steps of training, and the step of the save: its write has ended long before the last step


def seconds(action) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def save_and_flush(state: dict, path: Path) -> None:
    with open(path, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def seconds_per_gb(state: dict, folder: Path, rounds: int) -> dict[str, list[float]]:
    """{kind of save: seconds per GB in each round}. The kinds take turns. An extra first round is left out."""
    steps = itertools.count()
    sides = {
        "ours": lambda: checkpoint.save(folder / "ours", next(steps), state, keep=1),
        "plain": lambda: torch.save(state, folder / "plain.pt"),
        "plain and flushed": lambda: save_and_flush(state, folder / "flushed.pt"),
    }
    seconds_by_side: dict[str, list[float]] = {name: [] for name in sides}
    for name in in_turns(sides, rounds + 1):
        os.sync()  # so that no save waits for the writes of the one before it
        seconds_by_side[name].append(seconds(sides[name]))
    gigabytes = (folder / "plain.pt").stat().st_size / 1e9
    return {name: [duration / gigabytes for duration in times[1:]] for name, times in seconds_by_side.items()}


def stalls(world, folder: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds that a distributed save costs a loop of steps, in each round: {"synchronous", "background", "call"}.

    call: until the call that starts the save in the background has returned.
    """
    torch.manual_seed(1)
    model_config = WORKLOAD.model_config()
    model = DistributedDataParallel(MiniGPT(model_config))
    adamw = optimizer(model, fused=True)
    background_group = dist.new_group(backend="gloo")
    tokens = torch.randint(model_config.vocab_size, (1, model_config.context))

    def train(save) -> tuple[float, float]:
        """The seconds that STEPS steps took beyond STEPS times their median, and those until `save` returned."""
        step_seconds, call_seconds, finish = [], 0.0, None
        for step in range(STEPS):
            start = time.perf_counter()
            adamw.zero_grad()
            model(tokens, tokens).backward()
            adamw.step()
            if step == SAVE_AT:
                save_start = time.perf_counter()
                finish = save()
                call_seconds = time.perf_counter() - save_start
            if step == STEPS - 1 and finish:
                finish()
            step_seconds.append(time.perf_counter() - start)
        return sum(step_seconds) - STEPS * statistics.median(step_seconds), call_seconds

    def synchronous(number: int) -> None:
        distributed_checkpoint.save(folder, number, model, adamw)

    def background(number: int):
        return distributed_checkpoint.save_in_background(folder, number, model, adamw, background_group)[1]

    seconds_by_side: dict[str, list[float]] = {"synchronous": [], "background": [], "call": []}
    for number in range(rounds + 1):
        for save in (synchronous, background)[:: 1 if number % 2 else -1]:
            stall, call = train(functools.partial(save, number))
            seconds_by_side[save.__name__].append(stall)
            if save is background:
                seconds_by_side["call"].append(call)
            dist.barrier()
            if world.is_main:
                shutil.rmtree(folder / f"step_{number:06d}")
            dist.barrier()
    return {name: times[1:] for name, times in seconds_by_side.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=256, help="of the state that one rank saves")
    arguments = parser.parse_args()
    world = process_group.start(300, "cpu")
    with tempfile.TemporaryDirectory() as temporary:
        folder = from_rank_0(world, lambda: Path(temporary))
        if world.is_main:
            tensors = {n: torch.rand(arguments.megabytes * 2**20 // 4 // 16) for n in range(16)}
            costs = seconds_per_gb(tensors, folder, SAVES * arguments.rounds)
        dist.barrier()
        lost = stalls(world, folder / "distributed", arguments.rounds)
        if world.is_main:
            print(
                json.dumps(
                    {
                        "over_plain": divide(costs["ours"], costs["plain"]),
                        "over_plain_and_flushed": divide(costs["ours"], costs["plain and flushed"]),
                        "seconds_per_gb": costs["ours"],
                        "plain_seconds_per_gb": costs["plain"],
                        "background_over_synchronous": divide(lost["background"], lost["synchronous"]),
                        "synchronous_stall": lost["synchronous"],
                        "background_stall": lost["background"],
                        "background_call": lost["call"],
                    }
                )
            )
            print("medians:", {n: round(statistics.median(t), 3) for n, t in (costs | lost).items()}, file=sys.stderr)
        dist.barrier()


if __name__ == "__main__":
    main()
    process_group.stop()
