# mistake: a rank with an overflow leaves out backward and the average
# state: wrong
# check: does not end
# message: rank 0 had returned, rank 1 was in all_reduce

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
        if torch.isfinite(loss):
            scaler.scale(loss).backward()
            average_gradient(weight)
            scaler.step(optimizer)
            scaler.update()
        history.append([weight[0].tolist(), scaler.get_scale()])
    return history


def where_replicas_part(train, batches, scale):
    histories = [None] * dist.get_world_size()
    dist.all_gather_object(histories, [repr(entry) for entry in train(batches, scale)])
    for step in range(max(map(len, histories))):
        if len({history[step] if step < len(history) else None for history in histories}) > 1:
            return step
    return None
