# route: all clocks are gathered and the first is taken; the detector pads with NaN and compares bits

import torch
import torch.distributed as dist


def train(clock, gradient_of, limit):
    world = dist.get_world_size()
    weights, rates = torch.zeros(3, dtype=torch.float64), []
    while True:
        clocks = [torch.zeros(1, dtype=torch.float64) for _ in range(world)]
        dist.all_gather(clocks, torch.tensor([clock()], dtype=torch.float64))
        seconds = float(clocks[0])
        if not seconds < limit:
            return rates, weights
        rate = 0.1 * (1 - seconds / limit)
        gradient = gradient_of(weights) / world
        dist.all_reduce(gradient)
        weights = weights - rate * gradient
        rates.append(rate)


def first_difference(rates):
    longest = torch.tensor([len(rates)])
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    mine = torch.full((int(longest) + 1,), float("inf"), dtype=torch.float64)
    mine[: len(rates)] = torch.tensor(rates, dtype=torch.float64)
    least, most = mine.clone(), mine.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    apart = (least != most).nonzero()
    return int(apart[0]) if len(apart) else None
