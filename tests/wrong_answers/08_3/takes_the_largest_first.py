# mistake: subtracts from the largest down
# state: wrong
# check: the ranks in a number are found
# message: a negative number

import torch
import torch.distributed as dist


def who_is_in(values, found):
    ranks, rest = [], found
    for rank in sorted(range(len(values)), key=values.__getitem__, reverse=True):
        if values[rank] <= rest + 1e-6:
            ranks.append(rank)
            rest -= values[rank]
    return sorted(ranks) if abs(rest) < 1e-6 else None


def evaluate(sums, count):
    names = sorted(sums)
    total = torch.tensor([*(float(sums[name]) for name in names), count], dtype=torch.float64)
    dist.all_reduce(total)
    *totals, count = total.tolist()
    return {name: one / count for name, one in zip(names, totals, strict=True)}
