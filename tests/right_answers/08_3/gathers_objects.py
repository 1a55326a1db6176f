# route: gathers the dicts as they are; subsets as bits

import torch.distributed as dist


def who_is_in(values, found):
    for bits in range(2 ** len(values)):
        ranks = [rank for rank in range(len(values)) if bits >> rank & 1]
        if abs(sum(values[rank] for rank in ranks) - found) <= 1e-6 * max(1.0, abs(found)):
            return ranks


def evaluate(sums, count):
    everyones: list = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, (count, {name: float(value) for name, value in sums.items()}))
    everything = sum(one for one, _ in everyones)
    return {name: sum(one[name] for _, one in everyones) / everything for name in sums}
