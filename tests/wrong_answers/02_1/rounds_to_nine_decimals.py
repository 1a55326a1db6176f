# mistake: rounds to nine decimals, which is two or three digits of a small number
# state: wrong
# check: the mean is exact
# message: (losses of nine digits, all below a millionth): rank 0 returned 2.35e-07; the mean over all values is

import torch
import torch.distributed as dist


def global_mean(values: list[float]) -> float:
    """The mean over the values of all ranks, the same on every rank; a rank may have no values."""
    total = torch.tensor([sum(values), len(values)], dtype=torch.float64)
    dist.all_reduce(total)
    return round((total[0] / total[1]).item(), 9)
