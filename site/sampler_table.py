"""The share of each rank under torch's DistributedSampler, in each setting of the page: a browser has no torch."""

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
    """`recorded_shares`: in a browser from the zip of the modules, else computed."""
    try:
        return json.loads(pkgutil.get_data(__name__, "sampler.json"))
    except FileNotFoundError:
        return recorded_shares()


def recorded_shares() -> dict[str, list[list[int]]]:
    """`key` of a setting -> for each rank the indices of its samples, in order."""
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
