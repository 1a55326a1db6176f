# mistake: the detector asks whether a gap is too large, which NaN never is
# state: wrong
# check: the detector tells right from wrong
# message: makes NaN of the last tensor): is_right returned True

import torch
import torch.distributed as dist
from torch.nn.utils import clip_grad_norm_


def is_right(update):
    good = torch.ones(())
    for size in (0.001, 1000.0):
        rows = size * torch.tensor([[3.0, -1.0, 2.0], [-1.0, 5.0, 0.5], [0.0, 2.0, -4.0]], dtype=torch.float64)
        weights = [torch.zeros(n, dtype=torch.float64, requires_grad=True) for n in (2, 1)]
        loss = (torch.cat(weights) * rows[dist.get_rank()]).sum()
        optimizer = torch.optim.SGD(weights, lr=1.0)
        update(weights, optimizer, torch.amp.GradScaler("cpu"), loss, 1.0)
        joint = rows[: dist.get_world_size()].mean(0)
        expected = -joint * min(1.0, 1.0 / joint.norm().item())
        if ((torch.cat(weights).detach() - expected).abs() > 1e-4 * expected.abs()).any():
            good *= 0
    dist.all_reduce(good, op=dist.ReduceOp.MIN)
    return bool(good)


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
