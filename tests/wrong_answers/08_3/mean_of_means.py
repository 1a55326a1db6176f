# mistake: averages the ranks' means
# state: wrong
# check: the means are exact
# message: the mean of the ranks' means

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
    total = torch.tensor([float(sums[name]) / max(count, 1) for name in names], dtype=torch.float64)
    dist.all_reduce(total)
    return {name: one / dist.get_world_size() for name, one in zip(names, total.tolist(), strict=True)}
