import os

import torch
import torch.distributed as dist


def prepare(cache):
    if os.path.exists(cache):
        return torch.zeros(2)
    statistics = torch.ones(2)
    dist.all_reduce(statistics)
    return statistics
