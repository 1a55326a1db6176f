"""Measure checkpoints: seconds per GB of our save and of plain torch.save, and the time that a save blocks training.

    torchrun --standalone --nproc-per-node=2 benchmarks/checkpoint_cost.py [--rounds 5]

Prints one JSON object of lists. The first three have SAVES numbers per round, the others one:

    ours               seconds per GB of our save: atomic, checksummed, flushed
    plain              of plain torch.save
    plain and flushed  of torch.save followed by fsync, so that the file has reached the disk
    synchronous        seconds of training lost to a distributed save that blocks
    background         to a distributed save in the background, until it has finished
    call               seconds until the call that starts the save in the background has returned
"""

import argparse
import functools
import itertools
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from measure import in_turns
from torch.nn.parallel import DistributedDataParallel
from workload import WORKLOAD, optimizer

from ddp_course.checkpoint import checkpoint, distributed_checkpoint
from ddp_course.distributed import process_group
from ddp_course.distributed.sync import from_rank_0
from ddp_course.models.minigpt import MiniGPT

SAVES = 3  # of each kind in a round: the disk delays some saves of every kind
STEPS, SAVE_AT = 24, 8  # steps of training, and the step of the save: its write has ended long before the last step


def save_and_flush(state: dict, path: Path) -> None:
    with open(path, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def seconds_per_gb(state: dict, folder: Path, rounds: int) -> dict[str, list[float]]:
    """{kind of save: seconds per GB in each round}. The kinds take turns. An extra first round is left out."""
    steps = itertools.count()
    saves = {
        "ours": lambda: checkpoint.save(folder / "ours", next(steps), state, keep=1),
        "plain": lambda: torch.save(state, folder / "plain.pt"),
        "plain and flushed": lambda: save_and_flush(state, folder / "flushed.pt"),
    }
    seconds: dict[str, list[float]] = {kind: [] for kind in saves}
    for kind in in_turns(saves, rounds + 1):
        os.sync()  # so that no save waits for the writes of the one before it
        start = time.perf_counter()
        saves[kind]()
        seconds[kind].append(time.perf_counter() - start)
    gigabytes = (folder / "plain.pt").stat().st_size / 1e9
    return {kind: [duration / gigabytes for duration in times[1:]] for kind, times in seconds.items()}


def stalls(world: process_group.World, folder: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds that a distributed save costs a loop of steps, in each round: {"synchronous", "background", "call"}.

    call: until the call that starts the save in the background has returned.
    """
    torch.manual_seed(1)
    model_config = WORKLOAD.model_config()
    model = DistributedDataParallel(MiniGPT(model_config))
    adamw = optimizer(model)
    background_group = dist.new_group(backend="gloo")
    tokens = torch.randint(model_config.vocab_size, (1, model_config.context))

    def train(save: Callable[[], Callable | None]) -> tuple[float, float]:
        """The seconds that STEPS steps took beyond STEPS times their median, and those until `save` returned.

        save: called once; what it returns is called in the last step, and waits for the end of the write.
        """
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

    def background(number: int) -> Callable:
        return distributed_checkpoint.save_in_background(folder, number, model, adamw, background_group)[1]

    seconds: dict[str, list[float]] = {"synchronous": [], "background": [], "call": []}
    for turn, save in enumerate(in_turns([synchronous, background], rounds + 1)):
        stall, call = train(functools.partial(save, turn))
        seconds[save.__name__].append(stall)
        if save is background:
            seconds["call"].append(call)
        dist.barrier()
        if world.is_main:
            shutil.rmtree(folder / f"step_{turn:06d}")
        dist.barrier()
    return {name: times[1:] for name, times in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=256, help="of the state that one rank saves")
    arguments = parser.parse_args()
    world = process_group.start(300, "cpu")
    with tempfile.TemporaryDirectory() as temporary:
        folder = from_rank_0(world, lambda: Path(temporary))  # one folder for all ranks
        if world.is_main:
            tensors = {n: torch.rand(arguments.megabytes * 2**20 // 4 // 16) for n in range(16)}
            costs = seconds_per_gb(tensors, folder, SAVES * arguments.rounds)
        dist.barrier()
        lost = stalls(world, folder / "distributed", arguments.rounds)
        if world.is_main:
            print(json.dumps(costs | lost))
        dist.barrier()


if __name__ == "__main__":
    main()
    process_group.stop()
