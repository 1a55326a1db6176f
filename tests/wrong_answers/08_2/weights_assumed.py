# mistake: counts how often the sampler deals a sample, without asking evaluate
# state: wrong
# check: the weights are found
# message: the broken evaluate

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler


def weights(evaluate, samples, batch_size):
    world = dist.get_world_size()
    dealt = [list(DistributedSampler(range(samples), world, rank, shuffle=False)) for rank in range(world)]
    everything = sum(dealt, [])
    return [everything.count(sample) / len(everything) for sample in range(samples)]


def evaluate(loss_of, samples, batch_size):
    mine = range(dist.get_rank(), samples, dist.get_world_size())
    total = torch.zeros(2, dtype=torch.float64)
    for first in range(0, len(mine), batch_size):
        losses = loss_of(list(mine[first : first + batch_size]))
        total[0] += losses.sum()
        total[1] += len(losses)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()
