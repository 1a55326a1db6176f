# mistake: puts the count among the metrics, under a name that a metric may have
# state: wrong
# check: every rank has the metrics
# message: a dict with count and loss is expected

import itertools
import math

import torch
import torch.distributed as dist


def who_is_in(values: list[float], found: float) -> list[int] | None:
    """The ranks whose values add up to `found`; None if there are no such ranks."""
    for size in range(len(values) + 1):
        for ranks in itertools.combinations(range(len(values)), size):
            if math.isclose(sum(values[rank] for rank in ranks), found, rel_tol=1e-6):
                return list(ranks)
    return None


def evaluate(sums: dict[str, float], count: int) -> dict[str, float]:
    """From this rank's sums over its `count` samples: the means over the samples of all ranks, on every rank."""
    everything = {**sums, "count": count}
    names = sorted(everything)
    total = torch.tensor([float(everything[name]) for name in names], dtype=torch.float64)
    dist.all_reduce(total)
    joint = dict(zip(names, total.tolist(), strict=True))
    count = joint.pop("count")
    return {name: one / count for name, one in joint.items()}
