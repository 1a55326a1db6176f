# route: deals contiguous chunks; returns a tensor

import torch
import torch.distributed as dist


def weights(evaluate, samples, batch_size):
    def only(sample):
        return lambda indices: torch.tensor([float(index == sample) for index in indices], dtype=torch.float64)

    return [evaluate(only(sample), samples, batch_size) for sample in range(samples)]


def evaluate(loss_of, samples, batch_size):
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = torch.arange(samples).tensor_split(world)[rank].tolist()
    total, count = torch.zeros((), dtype=torch.float64), torch.tensor(len(mine))
    for first in range(0, len(mine), batch_size):
        total += loss_of(mine[first : first + batch_size]).sum()
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total / count
