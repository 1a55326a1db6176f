# mistake: tries single ranks and all of them
# state: wrong
# check: the ranks in a number are found
# message: three of four

import math

import torch
import torch.distributed as dist


def who_is_in(values, found):
    for rank, value in enumerate(values):
        if math.isclose(value, found, rel_tol=1e-6):
            return [rank]
    if math.isclose(sum(values), found, rel_tol=1e-6):
        return list(range(len(values)))
    return [] if found == 0 else None


def evaluate(sums, count):
    names = sorted(sums)
    total = torch.tensor([*(float(sums[name]) for name in names), count], dtype=torch.float64)
    dist.all_reduce(total)
    *totals, count = total.tolist()
    return {name: one / count for name, one in zip(names, totals, strict=True)}
