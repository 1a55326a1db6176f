# mistake: builds an int64 tensor where the list is empty: sum([]) is 0, not 0.0
# state: crashed
# check: dies
# message: was killed by SIGABRT

import torch
import torch.distributed as dist


def global_mean(values):
    total = torch.tensor([sum(values), len(values)])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()
