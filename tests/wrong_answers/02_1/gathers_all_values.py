# mistake: sends every value to every rank
# state: wrong
# check: little travels
# message: bytes to all_gather for its 3,000 values

import math

import torch.distributed as dist


def global_mean(values):
    lists = [None] * dist.get_world_size()
    dist.all_gather_object(lists, values)
    values = [value for one in lists for value in one]
    return math.fsum(values) / len(values)
