# mistake: fills short lists up with zeros
# state: wrong
# check: the detector names the step
# message: with the learning rate 0): first_difference returned None

import torch
import torch.distributed as dist


def first_difference(rates: list[float]) -> int | None:
    """The first step at which the ranks' learning rates are not all the same, on every rank; None if there is none."""
    longest = torch.tensor(len(rates))
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    mine = torch.zeros(int(longest), dtype=torch.float64)
    mine[: len(rates)] = torch.tensor(rates, dtype=torch.float64)
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, mine)
    differ = (torch.stack(everyones) != everyones[0]).any(0).nonzero().flatten().tolist()
    return differ[0] if differ else None


def train(clock, gradient_of, limit):
    """Make steps until `limit` seconds are over; returns the learning rate of each step, and the weights."""
    weights, rates = torch.zeros(3, dtype=torch.float64), []
    while True:
        seconds = torch.tensor(clock(), dtype=torch.float64)
        dist.broadcast(seconds, src=0)  # from here on there is one clock
        if seconds >= limit:
            break
        rates.append(0.1 * (1 - seconds.item() / limit))
        gradient = gradient_of(weights)
        dist.all_reduce(gradient)
        weights -= rates[-1] * gradient / dist.get_world_size()
    return rates, weights
