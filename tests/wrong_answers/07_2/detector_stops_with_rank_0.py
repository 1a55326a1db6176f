# mistake: the detector goes through rank 0's history and no further
# state: wrong
# check: the detector finds the step
# message: rank 0 left after two steps): where_replicas_part returned None

import torch
import torch.distributed as dist
from torch.nn.functional import linear


def where_replicas_part(train, batches, scale):
    histories = [None] * dist.get_world_size()
    dist.all_gather_object(histories, [repr(entry) for entry in train(batches, scale)])
    for step, entry in enumerate(histories[0]):
        if any(history[step : step + 1] != [entry] for history in histories):
            return step
    return None


def average_gradient(weight):
    dist.all_reduce(weight.grad)
    weight.grad /= dist.get_world_size()


def train(batches, scale):
    weight = torch.zeros(1, 2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    history = []
    for inputs, targets in batches:
        with torch.autocast("cpu", torch.float16):
            loss = (linear(inputs, weight) - targets).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        average_gradient(weight)
        scaler.step(optimizer)
        scaler.update()
        history.append([weight[0].tolist(), scaler.get_scale()])
    return history
