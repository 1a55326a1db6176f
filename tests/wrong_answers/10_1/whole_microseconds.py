# mistake: broadcasts whole microseconds
# state: wrong
# check: the learning rate is one
# message: clocks with many digits

import torch
import torch.distributed as dist


def first_difference(rates: list[float]) -> int | None:
    """The first step at which the ranks' learning rates are not all the same, on every rank; None if there is none."""
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, rates)  # lists of any lengths
    for step in range(max(map(len, everyones))):
        if len({mine[step] if step < len(mine) else None for mine in everyones}) > 1:
            return step
    return None


def train(clock, gradient_of, limit):
    """Make steps until `limit` seconds are over; returns the learning rate of each step, and the weights."""
    weights, rates = torch.zeros(3, dtype=torch.float64), []
    while True:
        seconds = torch.tensor(round(clock() * 1e6), dtype=torch.int64)
        dist.broadcast(seconds, src=0)  # from here on there is one clock
        seconds = seconds.double() / 1e6
        if seconds >= limit:
            break
        rates.append(0.1 * (1 - seconds.item() / limit))
        gradient = gradient_of(weights)
        dist.all_reduce(gradient)
        weights -= rates[-1] * gradient / dist.get_world_size()
    return rates, weights
