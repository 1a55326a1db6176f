# mistake: all-reduces after every batch
# state: wrong
# check: does not end
# message: rank 1 had returned

import torch
import torch.distributed as dist


def weights(evaluate, samples, batch_size):
    def only(sample):
        return lambda indices: torch.tensor([float(index == sample) for index in indices], dtype=torch.float64)

    return [evaluate(only(sample), samples, batch_size) for sample in range(samples)]


def evaluate(loss_of, samples, batch_size):
    mine = range(dist.get_rank(), samples, dist.get_world_size())
    total, count = 0.0, 0.0
    for first in range(0, len(mine), batch_size):
        losses = loss_of(list(mine[first : first + batch_size]))
        pair = torch.stack([losses.sum(), torch.tensor(float(len(losses)))])
        dist.all_reduce(pair)
        total += pair[0].item()
        count += pair[1].item()
    return total / max(count, 1)
