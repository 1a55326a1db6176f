"""Measure a step's embedding: rows gathered by SparseSignSGD, or a dense table under DDP, by size of the table.

    torchrun --standalone --nproc-per-node=2 benchmarks/sparse_or_dense.py [--rounds 5] [--rows 1000 1000000]

Both look up the same ids, get the same gradients and take one plain step: signs of the sum here, torch's SGD there,
which is the cheapest optimizer that a dense table can have. A dense table is left out where it would not fit. Prints
one JSON object: for each number of rows, "sparse" and "dense" (or null), each with

    bytes     that a rank passes to the collectives in a step
    memory    bytes by which the process has grown since before the table was built
    seconds   of a step, in each round: the median of the round's steps
"""

import argparse
import json
import os
import statistics
import sys
import time
from unittest.mock import patch

import psutil
import torch
import torch.distributed as dist
from measure import in_turns
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from ddp_course.distributed import process_group
from ddp_course.distributed.sparse_embedding import SparseEmbedding, SparseSignSGD

WIDTH, BATCH, STEPS = 16, 256, 5  # numbers in a row, ids of a rank, steps of a round
ROWS = (10**3, 10**4, 10**5, 10**6, 10**7)


class Sparse:
    """Rows looked up outside of DDP, trained by the optimizer that gathers them."""

    def __init__(self, rows: int, world: process_group.World) -> None:
        self.rows, self.table = rows, SparseEmbedding(rows, WIDTH)
        self.optimizer = SparseSignSGD(self.table, world, lr=1e-3)

    def step(self, ids: Tensor, factors: Tensor) -> None:
        (self.table(ids) * factors).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def sent_bytes(self, generator: torch.Generator) -> int:
        """The bytes that this rank passes to all_gather in one step."""
        with patch.object(dist, "all_gather", wraps=dist.all_gather) as all_gather:
            step_seconds(self, generator)
        return sum(call.args[1].nbytes for call in all_gather.call_args_list)


class Dense:
    """The same table as a parameter of a module that DDP wraps."""

    def __init__(self, rows: int, world: process_group.World) -> None:
        embedding = nn.Embedding(rows, WIDTH)
        self.rows, self.world = rows, world
        self.table = DistributedDataParallel(embedding, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.SGD(embedding.parameters(), lr=1e-3)

    def step(self, ids: Tensor, factors: Tensor) -> None:
        (self.table(ids) * factors).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)  # the gradient is DDP's bucket and stays

    def sent_bytes(self, generator: torch.Generator) -> int:
        """The bytes of DDP's buckets in one step of another replica: a hook in Python would slow down this one."""
        replica, sizes = Dense(self.rows, self.world), []

        def all_reduce(_: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
            sizes.append(bucket.buffer().nbytes)
            return allreduce_hook(None, bucket)

        replica.table.register_comm_hook(None, all_reduce)
        step_seconds(replica, generator)
        return sum(sizes)


def fits(rows: int, world: process_group.World) -> bool:
    """Whether two replicas, each with its gradient, and a copy on its way leave half of the free memory free."""
    free = torch.tensor(psutil.virtual_memory().available)
    dist.all_reduce(free, dist.ReduceOp.MIN)
    return 5 * world.size * rows * WIDTH * 4 < free.item() / 2


def measure(rows: int, rounds: int, world: process_group.World) -> dict[str, dict | None]:
    generator, process = torch.Generator().manual_seed(world.rank), psutil.Process()
    embeddings: dict[str, Sparse | Dense] = {}
    results: dict[str, dict | None] = {"sparse": None, "dense": None}
    for name, kind in (("sparse", Sparse), ("dense", Dense)):
        if kind is Dense and not fits(rows, world):
            continue
        memory_before = process.memory_info().rss
        embeddings[name] = kind(rows, world)
        for _ in range(2):
            step_seconds(embeddings[name], generator)
        results[name] = {"memory": process.memory_info().rss - memory_before, "seconds": []}
        results[name]["bytes"] = embeddings[name].sent_bytes(generator)
    for name in in_turns(embeddings, rounds):
        seconds = [step_seconds(embeddings[name], generator) for _ in range(STEPS)]
        results[name]["seconds"].append(statistics.median(seconds))
    return results


def step_seconds(embedding: Sparse | Dense, generator: torch.Generator) -> float:
    ids = torch.randint(embedding.rows, (BATCH,), generator=generator)
    factors = torch.randn(BATCH, WIDTH, generator=generator)
    dist.barrier()
    start = time.perf_counter()
    embedding.step(ids, factors)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    options = parser.parse_args()
    world = process_group.start(timeout_seconds=120, device="cpu")
    measure(10, 1, world)  # what the first step of a process loads is not part of a table's memory
    print(json.dumps({rows: measure(rows, options.rounds, world) for rows in options.rows}))
    sys.stdout.flush()
    os._exit(0)  # a hook's callbacks run in threads of gloo, whose tear-down can abort a finished process


if __name__ == "__main__":
    main()
