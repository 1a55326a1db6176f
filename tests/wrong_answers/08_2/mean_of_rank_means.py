# mistake: averages the ranks' means
# state: wrong
# check: every rank returns a number
# message: returned nan

import torch
import torch.distributed as dist


def weights(evaluate, samples, batch_size):
    def only(sample):
        return lambda indices: torch.tensor([float(index == sample) for index in indices], dtype=torch.float64)

    return [evaluate(only(sample), samples, batch_size) for sample in range(samples)]


def evaluate(loss_of, samples, batch_size):
    mine = list(range(dist.get_rank(), samples, dist.get_world_size()))
    mean = loss_of(mine).mean()
    dist.all_reduce(mean)
    return (mean / dist.get_world_size()).item()
