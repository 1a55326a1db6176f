# mistake: the mean of an empty tensor is nan, and nan spreads
# state: wrong
# check: every rank returns a number
# message: (rank 1 has no values): rank 0 returned nan; it should be 4.0

import torch
import torch.distributed as dist


def global_mean(values):
    values = torch.tensor(values, dtype=torch.float64)
    count = torch.tensor(float(len(values)), dtype=torch.float64)
    total = values.mean() * count
    dist.all_reduce(total)
    dist.all_reduce(count)
    return (total / count).item()
