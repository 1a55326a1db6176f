# mistake: takes every sample once, but averages the batches' means
# state: wrong
# check: the mean is exact
# message: the mean of the batches' means;

import torch
import torch.distributed as dist


def weights(evaluate, samples, batch_size):
    def only(sample):
        return lambda indices: torch.tensor([float(index == sample) for index in indices], dtype=torch.float64)

    return [evaluate(only(sample), samples, batch_size) for sample in range(samples)]


def evaluate(loss_of, samples, batch_size):
    mine = range(dist.get_rank(), samples, dist.get_world_size())
    total = torch.zeros(2, dtype=torch.float64)
    for first in range(0, len(mine), batch_size):
        losses = loss_of(list(mine[first : first + batch_size]))
        total[0] += losses.mean()
        total[1] += 1
    dist.all_reduce(total)
    return (total[0] / total[1]).item()
