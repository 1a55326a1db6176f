"""Measure a rank's time per batch: skipping the other ranks' batches, or reading only its own.

    python benchmarks/skip_or_shard.py [--rounds 5] [--batches 100]

The ranks are simulated: a rank's reading needs no other rank, so one process does the work of each in turn, and does
exactly what that rank would do. Both sides read real token files through data/stream.py. Prints one JSON object:

    world_sizes   [1, 2, 4, 8]
    used          batches that a rank trained on
    built         by world size: {"skip": ..., "source": ...}, batches that a rank built for that
    ms            by world size: {"skip": ..., "source": ...}, milliseconds of a batch that is used, median over rounds
    ratios        by world size: skip over source, one number a round; the sides take turns
"""

import argparse
import itertools
import json
import statistics
import time

from measure import divide

from ddp_course.data.stream import TokenStream
from ddp_course.data.token_file import prepare

WORLD_SIZES = (1, 2, 4, 8)
ROWS, CONTEXT = 16, 256  # of the batch that one rank trains on


class Counted:
    """An iterator that counts what was taken from it."""

    def __init__(self, batches):
        self.batches, self.built = batches, 0

    def __iter__(self):
        for batch in self.batches:
            self.built += 1
            yield batch


def skipping(file, rank, world_size):
    """All ranks read the same stream of batches; each keeps every world_size-th and throws the others away."""
    everything = Counted(TokenStream([file], context=CONTEXT, global_batch_size=ROWS))
    return everything, itertools.islice(everything, rank, None, world_size)


def at_the_source(file, rank, world_size):
    """The stream knows the rank and builds its share of each global batch."""
    share = TokenStream([file], context=CONTEXT, global_batch_size=ROWS * world_size, rank=rank, world_size=world_size)
    own = Counted(share)
    return own, iter(own)


def cost(way, file, world_size, batches):
    """(seconds of a batch that is used, batches built by a rank): over all ranks, one after the other."""
    seconds, built = 0.0, 0
    for rank in range(world_size):
        source, own_batches = way(file, rank, world_size)
        next(own_batches)  # the order of the epoch is drawn here, once, whatever the way
        source.built, start = 0, time.perf_counter()
        for _ in range(batches):
            next(own_batches)
        seconds, built = seconds + time.perf_counter() - start, built + source.built
    return seconds / (world_size * batches), built / world_size


def measure(rounds, batches):
    file = prepare("stdlib", "bytes", say=lambda line: None) / "train.bin"
    ways = {"skip": skipping, "source": at_the_source}
    seconds = {world_size: {name: [] for name in ways} for world_size in WORLD_SIZES}
    built = {world_size: {} for world_size in WORLD_SIZES}
    for number, world_size in itertools.product(range(rounds), WORLD_SIZES):
        for name in list(ways)[:: 1 if number % 2 == 0 else -1]:
            batch_seconds, built[world_size][name] = cost(ways[name], file, world_size, batches)
            seconds[world_size][name].append(batch_seconds)
    return {
        "world_sizes": WORLD_SIZES,
        "used": batches,
        "built": built,
        "ms": {w: {name: 1e3 * statistics.median(s) for name, s in both.items()} for w, both in seconds.items()},
        "ratios": {w: divide(both["skip"], both["source"]) for w, both in seconds.items()},
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=100)
    options = parser.parse_args()
    print(json.dumps(measure(options.rounds, options.batches)))
