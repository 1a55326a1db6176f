# mistake: returns the mean on rank 0 and nothing elsewhere
# state: wrong
# check: every rank returns a number
# message: rank 1 returned None

import torch
import torch.distributed as dist


def global_mean(values):
    total = torch.tensor([sum(values), len(values)], dtype=torch.float64)
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        return (total[0] / total[1]).item()
