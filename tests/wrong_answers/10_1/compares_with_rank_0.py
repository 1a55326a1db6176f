# mistake: each rank compares its own list with that of rank 0
# state: wrong
# check: the detector names the step
# message: while rank

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
    box = [rates]
    dist.broadcast_object_list(box, src=0)
    for step in range(max(len(rates), len(box[0]))):
        if rates[step : step + 1] != box[0][step : step + 1]:
            return step
    return None
