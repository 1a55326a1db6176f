# mistake: looks at the broadcast clock after the step instead of before it
# state: wrong
# check: the ranks stop after the same step
# message: rank 0 made 1 steps

import torch
import torch.distributed as dist


def seconds_of_rank_0(clock):
    seconds = torch.tensor([clock()], dtype=torch.float64)
    dist.broadcast(seconds, src=0)
    return seconds.item()


def train(clock, gradient_of, limit):
    weights, rates = torch.zeros(3, dtype=torch.float64), []
    seconds = seconds_of_rank_0(clock)
    while True:
        rates.append(0.1 * (1 - seconds / limit))
        gradient = gradient_of(weights)
        dist.all_reduce(gradient)
        weights -= rates[-1] * gradient / dist.get_world_size()
        seconds = seconds_of_rank_0(clock)
        if seconds >= limit:
            break
    dist.barrier()
    return rates, weights


def first_difference(rates):
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, rates)
    for step in range(max(map(len, everyones))):
        if len({mine[step] if step < len(mine) else None for mine in everyones}) > 1:
            return step
    return None
