# mistake: adds up in float32
# state: wrong
# check: the mean is exact
# message: rank 0 returned 14.5976926; the mean

import torch
import torch.distributed as dist


def weights(evaluate, samples: int, batch_size: int) -> list[float]:
    """The weight of each sample in what evaluate(loss_of, samples, batch_size) returns; called on every rank."""

    def only(sample):
        return lambda indices: torch.tensor([float(index == sample) for index in indices], dtype=torch.float64)

    return [evaluate(only(sample), samples, batch_size) for sample in range(samples)]


def evaluate(loss_of, samples: int, batch_size: int) -> float:
    """The mean loss over samples 0, 1, ... samples - 1. loss_of([4, 7]) is a tensor with the losses of these two."""
    mine = range(dist.get_rank(), samples, dist.get_world_size())
    total = torch.zeros(2)
    for first in range(0, len(mine), batch_size):
        losses = loss_of(list(mine[first : first + batch_size]))
        total[0] += losses.sum()
        total[1] += len(losses)
    dist.all_reduce(total)
    return total[0].item() / total[1].item()
