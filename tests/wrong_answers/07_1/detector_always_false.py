# mistake: the detector finds everything wrong
# state: wrong
# check: the detector tells right from wrong
# message: is_right returned False

import torch
import torch.distributed as dist
from torch.nn.utils import clip_grad_norm_


def average_gradients(weights):
    for weight in weights:
        dist.all_reduce(weight.grad)
        weight.grad /= dist.get_world_size()


def update(weights, optimizer, scaler, loss, limit):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    average_gradients(weights)
    scaler.unscale_(optimizer)
    norm = clip_grad_norm_(weights, limit)
    scaler.step(optimizer)
    scaler.update()
    return norm.item()


def train(inputs, targets, limit):
    weights = [torch.zeros(2, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)]
    for weight in weights:
        weight.requires_grad_()
    optimizer = torch.optim.SGD(weights, lr=0.5)
    scaler = torch.amp.GradScaler("cpu")
    path = []
    for batch, target in zip(inputs, targets, strict=True):
        loss = (batch @ weights[0] + weights[1] - target).square().mean()
        norm = update(weights, optimizer, scaler, loss, limit)
        path.append([torch.cat(weights).tolist(), norm])
    return path


def is_right(update):
    return False
