# mistake: lets each rank ask for its own samples only
# state: wrong
# check: does not end
# message: rank 1 was in

import torch
import torch.distributed as dist


def weights(evaluate, samples, batch_size):
    found = []
    for sample in range(dist.get_rank(), samples, dist.get_world_size()):
        one = torch.zeros(samples, dtype=torch.float64)
        one[sample] = 1
        found.append(evaluate(lambda indices, one=one: one[indices], samples, batch_size))
    return found


def evaluate(loss_of, samples, batch_size):
    mine = range(dist.get_rank(), samples, dist.get_world_size())
    total = torch.zeros(2, dtype=torch.float64)
    for first in range(0, len(mine), batch_size):
        losses = loss_of(list(mine[first : first + batch_size]))
        total[0] += losses.sum()
        total[1] += len(losses)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()
