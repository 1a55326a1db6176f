"""Measure a rank's time per batch: skipping the other ranks' batches, or reading only its own.

    python benchmarks/skip_or_shard.py [--rounds 5] [--batches 100]

A rank reads without any other rank, so one process reads the batches of each rank in turn, as that rank would. Both
readers read real token files through data/stream.py. Prints one JSON object: world size -> seconds per batch of the
reader that skips over those of the reader that shards at the source, in each round.
"""

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from measure import divide, in_turns

from ddp_course.data.stream import TokenStream
from ddp_course.data.token_file import prepare

WORLD_SIZES = (1, 2, 4, 8)
WINDOWS, CONTEXT = 16, 256  # of the batch that one rank trains on


def skip(file: Path, rank: int, world_size: int) -> Iterator:
    """Build the batches of all ranks, and keep every world_size-th."""
    return itertools.islice(TokenStream([file], context=CONTEXT, global_batch_size=WINDOWS), rank, None, world_size)


def shard(file: Path, rank: int, world_size: int) -> Iterator:
    """Build only the rank's share of each global batch."""
    global_batch_size = WINDOWS * world_size
    return iter(
        TokenStream([file], context=CONTEXT, global_batch_size=global_batch_size, rank=rank, world_size=world_size)
    )


def seconds_per_batch(reader: Callable, file: Path, world_size: int, batches: int) -> float:
    """Seconds per batch that a rank trains on, the mean over all ranks."""
    seconds = 0.0
    for rank in range(world_size):
        own_batches = reader(file, rank, world_size)
        next(own_batches)  # draws the order of the epoch, which both readers do
        start = time.perf_counter()
        for _ in range(batches):
            next(own_batches)
        seconds += time.perf_counter() - start
    return seconds / (world_size * batches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=100)
    options = parser.parse_args()
    file = prepare("stdlib", "bytes", say=lambda line: None) / "train.bin"
    ratios = {}
    for world_size in WORLD_SIZES:
        seconds: dict[Callable, list[float]] = {skip: [], shard: []}
        for reader in in_turns(seconds, options.rounds):
            seconds[reader].append(seconds_per_batch(reader, file, world_size, options.batches))
        ratios[world_size] = divide(seconds[skip], seconds[shard])
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
