# route: all-gathers (sum, count) as Python objects and adds them with fsum

import math

import torch.distributed as dist


def global_mean(values):
    pairs = [None] * dist.get_world_size()
    dist.all_gather_object(pairs, (math.fsum(values), len(values)))
    sums, counts = zip(*pairs, strict=True)
    return math.fsum(sums) / sum(counts)
