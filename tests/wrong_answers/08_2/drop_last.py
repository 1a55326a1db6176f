# mistake: drops samples so that all ranks have as many
# state: wrong
# check: every rank returns a number
# message: returned nan

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler


def weights(evaluate, samples, batch_size):
    def only(sample):
        return lambda indices: torch.tensor([float(index == sample) for index in indices], dtype=torch.float64)

    return [evaluate(only(sample), samples, batch_size) for sample in range(samples)]


def evaluate(loss_of, samples, batch_size):
    mine = list(DistributedSampler(range(samples), shuffle=False, drop_last=True))
    total = torch.zeros(2, dtype=torch.float64)
    for first in range(0, len(mine), batch_size):
        losses = loss_of(list(mine[first : first + batch_size]))
        total[0] += losses.sum()
        total[1] += len(losses)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()
