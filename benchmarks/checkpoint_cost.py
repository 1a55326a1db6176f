"""Measure checkpoints: seconds per GB of our save and of plain torch.save.

    python benchmarks/checkpoint_cost.py [--rounds 5]

Prints one JSON object of lists, with SAVES numbers per round:

    ours               seconds per GB of our save: atomic, checksummed, flushed
    plain              of plain torch.save
    plain and flushed  of torch.save followed by fsync, so that the file has reached the disk
"""

import argparse
import itertools
import json
import os
import tempfile
import time
from pathlib import Path

import torch
from measure import in_turns

from ddp_course.checkpoint import checkpoint

SAVES = 3  # of each kind in a round: the disk delays some saves of every kind


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=256, help="of the state")
    arguments = parser.parse_args()
    tensors = {n: torch.rand(arguments.megabytes * 2**20 // 4 // 16) for n in range(16)}
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(seconds_per_gb(tensors, Path(folder), SAVES * arguments.rounds)))


if __name__ == "__main__":
    main()
