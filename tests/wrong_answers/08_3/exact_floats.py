# mistake: compares sums of floats to the last bit
# state: wrong
# check: the ranks in a number are found
# message: rounded on the way

import itertools

import torch
import torch.distributed as dist


def who_is_in(values, found):
    for size in range(len(values) + 1):
        for ranks in itertools.combinations(range(len(values)), size):
            if sum(values[rank] for rank in ranks) == found:
                return list(ranks)
    return None


def evaluate(sums, count):
    names = sorted(sums)
    total = torch.tensor([*(float(sums[name]) for name in names), count], dtype=torch.float64)
    dist.all_reduce(total)
    *totals, count = total.tolist()
    return {name: one / count for name, one in zip(names, totals, strict=True)}
