"""Measure a step's embedding: rows gathered by SparseSignSGD, or a dense table under DDP, by size of the table.

    torchrun --standalone --nproc-per-node=2 benchmarks/sparse_or_dense.py [--rounds 5] [--rows 1000 1000000]

Both look up the same ids, get the same gradients and take one plain step: signs of the sum here, torch's SGD there,
which is the cheapest optimizer that a dense table can have. A dense table is left out where it would not fit. Prints
one JSON object: for each number of rows, "sparse" and "dense" (or null), each with

    bytes     what a rank hands to the collectives in a step, counted where they are called
    memory    bytes by which the process has grown since before the table was built
    seconds   of a step, one number a round: the median of the round's steps; the sides take turns
"""

import argparse
import json
import os
import statistics
import sys
import time

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_course.distributed import process_group
from ddp_course.distributed.sparse_embedding import SparseEmbedding, SparseSignSGD

WIDTH, BATCH, STEPS = 16, 256, 5  # numbers in a row, ids of a rank, steps of a round
ROWS = (10**3, 10**4, 10**5, 10**6, 10**7)


class Sparse:
    """Rows looked up outside of DDP, trained by the optimizer that gathers them."""

    def __init__(self, rows: int, world: process_group.World) -> None:
        self.table = SparseEmbedding(rows, WIDTH)
        self.optimizer, self.sent, self._all_gather = SparseSignSGD(self.table, world, lr=1e-3), 0, dist.all_gather

    def step(self, ids: torch.Tensor, factors: torch.Tensor) -> None:
        dist.all_gather = self._counted
        (self.table(ids) * factors).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        dist.all_gather = self._all_gather

    def _counted(self, received, tensor, *arguments, **options):
        self.sent += tensor.nbytes
        return self._all_gather(received, tensor, *arguments, **options)


class Dense:
    """The same table as a parameter of a module that DDP wraps."""

    def __init__(self, rows: int, world: process_group.World, counted: bool = False) -> None:
        embedding = nn.Embedding(rows, WIDTH)
        self.table, self.sent = DistributedDataParallel(embedding, gradient_as_bucket_view=True), 0
        if counted:  # a hook in Python costs time: the replica that is timed has none
            self.table.register_comm_hook(None, self._counted)
        self.optimizer = torch.optim.SGD(embedding.parameters(), lr=1e-3)

    def step(self, ids: torch.Tensor, factors: torch.Tensor) -> None:
        (self.table(ids) * factors).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)  # the gradient is DDP's bucket and stays

    def _counted(self, _, bucket: dist.GradBucket):
        self.sent += bucket.buffer().nbytes
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0] / dist.get_world_size())


def fits(rows: int, world: process_group.World) -> bool:
    """Whether two replicas, each with its gradient, and a copy on its way leave half of the free memory free."""
    free = torch.tensor(psutil.virtual_memory().available)
    dist.all_reduce(free, dist.ReduceOp.MIN)
    return 5 * world.size * rows * WIDTH * 4 < free.item() / 2


def measure(rows: int, rounds: int, world: process_group.World) -> dict:
    random, own = torch.Generator().manual_seed(world.rank), psutil.Process()
    results, sides = {}, {}
    for name, kind in {"sparse": Sparse, "dense": Dense}.items():
        results[name] = None
        if name == "dense" and not fits(rows, world):
            continue
        memory_before, sides[name] = own.memory_info().rss, kind(rows, world)
        one_step(sides[name], rows, random)
        sides[name].sent = 0
        one_step(sides[name], rows, random)
        results[name] = {"bytes": sides[name].sent, "memory": own.memory_info().rss - memory_before, "seconds": []}
    if results["dense"]:
        one_step(counted := Dense(rows, world, counted=True), rows, random)
        results["dense"]["bytes"] = counted.sent
        del counted
    for number in range(rounds):
        for name in list(sides)[:: 1 if number % 2 == 0 else -1]:
            seconds = [one_step(sides[name], rows, random) for _ in range(STEPS)]
            results[name]["seconds"].append(statistics.median(seconds))
    return results


def one_step(side: Sparse | Dense, rows: int, random: torch.Generator) -> float:
    ids, factors = torch.randint(rows, (BATCH,), generator=random), torch.randn(BATCH, WIDTH, generator=random)
    dist.barrier()
    start = time.perf_counter()
    side.step(ids, factors)
    return time.perf_counter() - start


def compare_sparse(table, rounds: int) -> None:
    """Rows for RESULTS.md: `table` is a measure.Table."""
    from measure import HERE, divide, one_thread

    from ddp_course.launcher import torchrun

    run = torchrun(HERE / "sparse_or_dense.py", "--rounds", rounds, nproc=2, timeout=900, quiet=True, env=one_thread())
    for rows, results in run.results[0].items():
        sparse, dense, rows = results["sparse"], results["dense"], f"{int(rows):,} rows of {WIDTH} numbers"
        for name, side in (("sparse", sparse), ("dense", dense)):
            text = (
                "does not fit"
                if side is None
                else (
                    f"{statistics.median(side['seconds']) * 1e3:.2f} ms, {side['bytes']:,} bytes to the collectives, "
                    f"{max(side['memory'], 0) / 2**20:.0f} MiB"
                )
            )
            table.figure(f"a step of the {name} embedding, {rows}", text)
        if dense:
            table.ratio(
                f"step time: dense embedding under DDP over sparse, {rows}", divide(dense["seconds"], sparse["seconds"])
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    options = parser.parse_args()
    world = process_group.start(timeout_seconds=120, device="cpu")
    measure(10, 1, world)  # what the first step of a process loads is no table's memory
    print(json.dumps({rows: measure(rows, options.rounds, world) for rows in options.rows}))
    sys.stdout.flush()
    os._exit(0)  # a hook's callbacks run in threads of gloo, whose tear-down can abort a finished process


if __name__ == "__main__":
    main()
