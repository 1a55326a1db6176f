# route: rank 0 broadcasts a decision and a learning rate as an object; the detector lets rank 0 find the step

import torch
import torch.distributed as dist


def train(clock, gradient_of, limit):
    weights, rates = torch.zeros(3, dtype=torch.float64), []
    while True:
        seconds = clock()
        box = [0.1 * (1 - seconds / limit) if seconds < limit else None]
        dist.broadcast_object_list(box, src=0)
        if box[0] is None:
            break
        rates += box
        gradient = gradient_of(weights)
        dist.all_reduce(gradient)
        weights -= box[0] * gradient / dist.get_world_size()
    return rates, weights


def first_difference(rates):
    world = dist.get_world_size()
    lists = [None] * world if dist.get_rank() == 0 else None
    dist.gather_object(rates, lists, dst=0)
    box = [None]
    if dist.get_rank() == 0:
        for step in range(max(map(len, lists))):
            if any(one[step : step + 1] != lists[0][step : step + 1] for one in lists):
                box = [step]
                break
    dist.broadcast_object_list(box, src=0)
    return box[0]
