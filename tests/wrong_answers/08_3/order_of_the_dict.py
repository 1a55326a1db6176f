# mistake: takes the values in each rank's own order
# state: wrong
# check: the means are exact
# message: rank 1 lists its metrics in another order

import itertools
import math

import torch
import torch.distributed as dist


def who_is_in(values, found):
    for size in range(len(values) + 1):
        for ranks in itertools.combinations(range(len(values)), size):
            if math.isclose(sum(values[rank] for rank in ranks), found, rel_tol=1e-6):
                return list(ranks)
    return None


def evaluate(sums, count):
    names = list(sums)
    total = torch.tensor([*(float(sums[name]) for name in names), count], dtype=torch.float64)
    dist.all_reduce(total)
    *totals, count = total.tolist()
    return {name: one / count for name, one in zip(names, totals, strict=True)}
