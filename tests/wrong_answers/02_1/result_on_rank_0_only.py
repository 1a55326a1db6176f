# mistake: reduces to rank 0, so that the others keep what they had
# state: wrong
# check: the mean is exact
# message: rank 1 returned 10.0, the mean of its own values

import torch
import torch.distributed as dist


def global_mean(values):
    total = torch.tensor([sum(values), len(values)], dtype=torch.float64)
    dist.reduce(total, dst=0)
    if dist.get_rank() > 0:
        return sum(values) / len(values) if values else 0.0
    return (total[0] / total[1]).item()
