"""The shares that torch's DistributedSampler deals out in each setting of the page: a browser has no torch."""

import json
import pkgutil
from functools import cache
from itertools import product

SAMPLES = 8, 9, 10, 12, 15, 16
RANKS = range(1, 9)
EPOCHS = range(8)


def key(samples: int, ranks: int, epoch: int, shuffle: bool, drop_last: bool) -> str:
    return f"{samples} samples, {ranks} ranks, epoch {epoch if shuffle else 0}, {shuffle=}, {drop_last=}"


@cache
def shares_by_setting() -> dict[str, list[list[int]]]:
    try:
        return json.loads(pkgutil.get_data(__name__, "sampler.json"))
    except FileNotFoundError:  # not in a browser: torch is here
        return recorded_shares()


def recorded_shares() -> dict[str, list[list[int]]]:
    """For each setting what each rank reads, in order."""
    from torch.utils.data import DistributedSampler

    table = {}
    for samples, ranks, epoch, shuffle, drop_last in product(SAMPLES, RANKS, EPOCHS, (True, False), (True, False)):
        shares = []
        for rank in range(ranks):
            sampler = DistributedSampler(range(samples), ranks, rank, shuffle=shuffle, drop_last=drop_last)
            sampler.set_epoch(epoch)
            shares.append(list(sampler))
        table[key(samples, ranks, epoch, shuffle, drop_last)] = shares
    return table
