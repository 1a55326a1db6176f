"""Inside a rank, for 20.4: steps with the learner's sharded table, and what one process has after each."""

import torch
import torch.distributed as dist

from ddp_course.grader.harness.tensors import random_tensor

LR, WIDTH, DIFFERENT = 0.5, 4, 200
MANY = f"400 ids on each rank, {DIFFERENT} of them different"
CASES = {  # the bounds between the ranks' rows, and for each step the ids of each rank
    "rank 0 owns 5 rows, rank 1 owns 2": ([0, 5, 7], [[[4, 6], [1, 5, 3]], [[0, 4], [6, 2]]]),
    "ids repeated on a rank and on both": ([0, 2, 7], [[[1, 5, 1, 1], [5, 5, 1]], [[5, 1], [1]], [[5, 5], [5]]]),
    "no rank asks rank 1": ([0, 4, 7], [[[3, 0], [2]]]),
    "an empty batch": ([0, 3, 7], [[[], [6, 2]], [[5, 0], []], [[], []]]),
    "the ranks own 5, 1 and 4 rows": ([0, 5, 6, 10], [[[9, 5, 0], [5, 5], [1, 6, 9]], [[5], [8, 0, 2], []]]),
    "rank 1 of three owns no row": ([0, 3, 3, 8], [[[7, 3, 0], [3, 2], [3, 3, 7]]]),
    MANY: ([0, 800, 1500, 2300, 3000], [[[i % DIFFERENT * 15 + rank % 2 for i in range(400)] for rank in range(4)]]),
}


def start(bounds):
    return torch.linspace(-1, 1, bounds[-1] * WIDTH, dtype=torch.float64).view(-1, WIDTH)


def gradients_of(ids, step, rank):
    return random_tensor(100 * step + rank, len(ids), WIDTH)


def drive(build, scenario):
    """For each step the rows looked up, and this rank's shard after it with its accumulators as the last column."""
    (bounds, steps), rank, results = CASES[scenario], dist.get_rank(), []
    table = build(start(bounds)[slice(*bounds[rank:][:2])].clone(), list(bounds), LR)
    for step, ids in enumerate(steps):
        rows = table.lookup(torch.tensor(ids[rank], dtype=torch.int64)).clone()
        table.step(gradients_of(ids[rank], step, rank))
        results.append((rows, torch.cat([table.shard, table.accumulator.view(-1, 1)], dim=1)))
    return results


def one_process(scenario):
    """The whole table after each step, with the same columns, of one process with the global batch."""
    bounds, steps = CASES[scenario]
    table, accumulator = start(bounds), torch.zeros(bounds[-1], dtype=torch.float64)
    for step, batches in enumerate(steps):
        total = torch.zeros_like(table)
        for rank, ids in enumerate(batches):
            total.index_add_(0, torch.tensor(ids, dtype=torch.int64), gradients_of(ids, step, rank))
        accumulator = accumulator + total.square().mean(dim=1)
        table = table - LR * total / (accumulator.sqrt() + 1e-8)[:, None]
        yield torch.cat([table, accumulator[:, None]], dim=1)
