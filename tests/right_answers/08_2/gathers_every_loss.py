# route: gathers all losses in their order; weights by differences

import torch
import torch.distributed as dist


def weights(evaluate, samples, batch_size):
    def result(values):
        return float(evaluate(lambda indices: values[list(indices)], samples, batch_size))

    ones = torch.ones(samples, dtype=torch.float64)
    base = result(ones)
    found = torch.zeros(samples)
    for sample in range(samples):
        more = ones.clone()
        more[sample] += 1
        found[sample] = result(more) - base
    return found


def evaluate(loss_of, samples, batch_size):
    mine = list(range(dist.get_rank(), samples, dist.get_world_size()))
    losses = []
    for first in range(0, len(mine), batch_size):
        losses += loss_of(mine[first : first + batch_size]).tolist()
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, losses)
    return sum(sum(one) for one in everyones) / sum(len(one) for one in everyones)
