# route: the ranks tell each other whether anything overflowed, and set the scale by hand; the detector compares bytes

import struct

import torch
import torch.distributed as dist
from torch.nn.functional import linear


def train(batches, scale):
    weight, history = torch.zeros(1, 2, requires_grad=True), []
    for inputs, targets in batches:
        with torch.autocast("cpu", torch.float16):
            loss = (linear(inputs, weight) - targets).square().mean()
        [gradient] = torch.autograd.grad(loss * scale, weight)
        overflowed = torch.tensor(0.0 if gradient.isfinite().all() else 1.0)
        dist.all_reduce(overflowed, op=dist.ReduceOp.MAX)
        if overflowed:
            scale = scale / 2
        else:
            dist.all_reduce(gradient)
            with torch.no_grad():
                weight -= 0.05 * gradient / dist.get_world_size() / scale
        history.append((weight[0].tolist(), scale))
    return history


def where_replicas_part(train, batches, scale):
    mine = [struct.pack("3d", *weights, scale) for weights, scale in train(batches, scale)]
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    longest = max(len(history) for history in everyone)
    for step in range(longest):
        if any(history[step : step + 1] != mine[step : step + 1] for history in everyone) or any(
            history[step : step + 1] != everyone[0][step : step + 1] for history in everyone
        ):
            return step
