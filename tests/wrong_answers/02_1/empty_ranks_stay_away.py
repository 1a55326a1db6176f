# mistake: a rank without values does not join the all-reduce
# state: wrong
# check: does not end
# message: rank 0 was in all_reduce (line 13), rank 1 was in barrier (line 15)

import torch
import torch.distributed as dist


def global_mean(values):
    total = torch.tensor([sum(values), len(values)], dtype=torch.float64)
    if values:
        dist.all_reduce(total)
    else:
        dist.barrier()
    return (total[0] / total[1]).item()
