# mistake: gathers lists of different lengths as tensors
# state: crashed
# check: dies
# message: was killed by SIGABRT

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
    mine = torch.tensor(rates, dtype=torch.float64)
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, mine)
    for step in range(len(mine)):
        if len({one[step].item() for one in everyones}) > 1:
            return step
    return None
