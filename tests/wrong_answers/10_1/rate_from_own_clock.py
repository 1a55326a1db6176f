# mistake: lets rank 0 decide about the end and takes the learning rate from its own clock
# state: wrong
# check: the learning rate is one
# message: that of its own clock

import torch
import torch.distributed as dist


def seconds_of_rank_0(clock):
    seconds = torch.tensor([clock()], dtype=torch.float64)
    dist.broadcast(seconds, src=0)
    return seconds.item()


def train(clock, gradient_of, limit):
    weights, rates = torch.zeros(3, dtype=torch.float64), []
    while seconds_of_rank_0(clock) < limit:
        rates.append(0.1 * (1 - clock() / limit))
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
            return step
    return None
