# mistake: counts in thousandths, because integers add up exactly
# state: wrong
# check: the mean is exact
# message: (losses of nine digits): rank 0 returned 1.03575

import torch
import torch.distributed as dist


def global_mean(values: list[float]) -> float:
    # integers add up exactly, in any order: so count in thousandths
    total = torch.tensor([round(sum(values) * 1000), len(values)], dtype=torch.int64)
    dist.all_reduce(total)
    return total[0].item() / 1000 / total[1].item()
