# mistake: all-reduces each number by itself
# state: wrong
# check: one message is enough
# message: started 3 operations

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
    def total(value):
        one = torch.tensor(float(value), dtype=torch.float64)
        dist.all_reduce(one)
        return one.item()

    everything = total(count)
    return {name: total(sums[name]) / everything for name in sorted(sums)}
