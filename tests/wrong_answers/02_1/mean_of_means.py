# mistake: averages the ranks' means
# state: wrong
# check: the mean is exact
# message: the mean of the ranks' means; the mean over all values is

import torch
import torch.distributed as dist


def global_mean(values):
    mean = sum(values) / len(values) if values else 0.0
    total = torch.tensor([mean, float(bool(values))], dtype=torch.float64)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()
