# mistake: adds in float32, torch's default for a list of floats
# state: wrong
# check: the mean is exact
# message: (30 million and 1, minus 30 million and 1, 2): rank 0 returned 0.4

import torch
import torch.distributed as dist


def global_mean(values):
    total = torch.tensor([float(sum(values)), len(values)])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()
