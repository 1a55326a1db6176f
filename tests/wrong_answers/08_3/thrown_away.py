# mistake: all-reduces and returns the rank's own numbers
# state: wrong
# check: the means are exact
# message: on rank 0, correct is 0.9, its own mean

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
    names = sorted(sums)
    total = torch.tensor([*(float(sums[name]) for name in names), count], dtype=torch.float64)
    dist.all_reduce(total)
    return {name: float(sums[name]) / max(count, 1) for name in names}
