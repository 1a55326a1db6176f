# mistake: the detector asks only whether the ranks end equal
# state: wrong
# check: the detector tells right from wrong
# message: is_right returned True on rank 0; it should be False

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
    weights = [torch.zeros(3, dtype=torch.float64, requires_grad=True)]
    loss = (weights[0] * (7.0 + dist.get_rank())).sum()
    update(weights, torch.optim.SGD(weights, lr=1.0), torch.amp.GradScaler("cpu"), loss, 1.0)
    everyone = [torch.empty(3, dtype=torch.float64) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, weights[0].detach())
    return all(torch.equal(one, everyone[0]) for one in everyone)
