# route: one message for all gradients, scale and clip by hand; a detector that compares with its own update

import math

import torch
import torch.distributed as dist


def update(weights, optimizer, scaler, loss, limit):
    optimizer.zero_grad()
    (loss * 1024.0).backward()
    flat = torch.cat([weight.grad.flatten() for weight in weights])
    dist.all_reduce(flat)
    flat = flat / dist.get_world_size() / 1024.0
    norm = flat.norm().item()
    if not math.isfinite(norm):
        return norm
    pieces = (flat * min(1.0, limit / (norm + 1e-12))).split([weight.numel() for weight in weights])
    for weight, piece in zip(weights, pieces, strict=True):
        weight.grad = piece.view_as(weight)
    optimizer.step()
    return norm


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


def is_right(update_to_test):
    differences = 0
    for size in (1e-3, 1e3):
        ends = []
        for one in (update_to_test, update):
            generator = torch.Generator().manual_seed(dist.get_rank())
            weights = [torch.zeros(2, 2, requires_grad=True), torch.zeros(3, requires_grad=True)]
            loss = sum((weight * size * torch.randn(weight.shape, generator=generator)).sum() for weight in weights)
            one(weights, torch.optim.SGD(weights, lr=1.0), torch.amp.GradScaler("cpu"), loss, 1.0)
            ends.append(torch.cat([weight.detach().flatten() for weight in weights]))
        differences += int(not (ends[0] - ends[1]).norm() <= 1e-3 * ends[1].norm())
    seen = [None] * dist.get_world_size()
    dist.all_gather_object(seen, differences)
    return not any(seen)
