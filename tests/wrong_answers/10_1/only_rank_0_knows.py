# mistake: returns the answer on rank 0 only
# state: wrong
# check: the detector names the step
# message: while rank 0 is right

import torch
import torch.distributed as dist


def seconds_of_rank_0(clock):
    seconds = torch.tensor([clock()], dtype=torch.float64)
    dist.broadcast(seconds, src=0)
    return seconds.item()


def train(clock, gradient_of, limit):
    weights, rates = torch.zeros(3, dtype=torch.float64), []
    while (seconds := seconds_of_rank_0(clock)) < limit:
        rates.append(0.1 * (1 - seconds / limit))
        gradient = gradient_of(weights)
        dist.all_reduce(gradient)
        weights -= rates[-1] * gradient / dist.get_world_size()
    dist.barrier()
    return rates, weights


def first_difference(rates):
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, rates)
    for step in range(max(map(len, everyones))):
        if len({mine[step] if step < len(mine) else None for mine in everyones}) > 1:
            return step if dist.get_rank() == 0 else None
    return None
