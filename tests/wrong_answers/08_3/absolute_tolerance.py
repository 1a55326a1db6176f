# mistake: allows an absolute difference of a millionth
# state: wrong
# check: the ranks in a number are found
# message: large numbers, rounded on the way

import itertools

import torch
import torch.distributed as dist


def who_is_in(values: list[float], found: float) -> list[int] | None:
    """The ranks whose values add up to `found`; None if there are no such ranks."""
    for size in range(len(values) + 1):
        for ranks in itertools.combinations(range(len(values)), size):
            if abs(sum(values[rank] for rank in ranks) - found) < 1e-6:
                return list(ranks)
    return None


def evaluate(sums: dict[str, float], count: int) -> dict[str, float]:
    """From this rank's sums over its `count` samples: the means over the samples of all ranks, on every rank."""
    names = sorted(sums)  # a dict keeps the order in which it was filled, and that may differ from rank to rank
    total = torch.tensor([*(float(sums[name]) for name in names), count], dtype=torch.float64)
    dist.all_reduce(total)
    *totals, everything = total.tolist()
    return {name: one / everything for name, one in zip(names, totals, strict=True)}
