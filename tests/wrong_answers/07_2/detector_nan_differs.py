# mistake: the detector compares numbers with ==, and NaN is not equal to itself
# state: wrong
# check: the detector finds the step
# message: NaN on all ranks from step 2 on

import torch
import torch.distributed as dist
from torch.nn.functional import linear


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


def where_replicas_part(train, batches, scale):
    histories = [None] * dist.get_world_size()
    dist.all_gather_object(histories, train(batches, scale))
    for step in range(max(map(len, histories))):
        entries = [history[step] if step < len(history) else [[], None] for history in histories]
        flat = [[*weights, scale] for weights, scale in entries]
        if any(len(one) != len(flat[0]) or any(x != y for x, y in zip(one, flat[0], strict=True)) for one in flat):
            return step
    return None
