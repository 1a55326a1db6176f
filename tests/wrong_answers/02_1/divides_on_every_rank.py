# mistake: a rank without values divides by zero
# state: crashed
# check: raises
# message: (rank 1 has no values): rank 1 raised ZeroDivisionError: division by zero

import torch
import torch.distributed as dist


def global_mean(values):
    mean = sum(values) / len(values)
    total = torch.tensor([mean * len(values), len(values)], dtype=torch.float64)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()
