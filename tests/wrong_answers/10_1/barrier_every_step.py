# mistake: waits for the others in every step and still looks at its own clock
# state: wrong
# check: does not end
# message: rank 0 was in barrier

import torch
import torch.distributed as dist


def train(clock, gradient_of, limit):
    weights, rates = torch.zeros(3, dtype=torch.float64), []
    while (seconds := clock()) < limit:
        rates.append(0.1 * (1 - seconds / limit))
        dist.barrier()
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
