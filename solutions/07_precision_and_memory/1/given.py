"""Data-parallel training of a linear model, with a loss scale and a limit on the norm of the gradient."""

from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.nn  # imported later, by an optimizer, it would keep the group alive past its end
from torch.nn.utils import clip_grad_norm_


def average_gradients(weights):
    """As DDP does in backward: each gradient becomes its mean over the ranks."""
    for weight in weights:
        dist.all_reduce(weight.grad)
        weight.grad /= dist.get_world_size()


def train_step(weights, optimizer, scaler, loss, limit):
    """A step along the averaged gradient, whose norm is clipped to `limit`. Returns the norm before clipping."""
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    norm = clip_grad_norm_(weights, limit)
    average_gradients(weights)
    scaler.step(optimizer)
    scaler.update()
    return norm.item()


def train(inputs, targets, limit):
    """Train on inputs (steps, batch, 2) and targets (steps, batch). Returns [the three weights, the norm] by step."""
    weights = [torch.zeros(2, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)]
    for weight in weights:
        weight.requires_grad_()
    optimizer = torch.optim.SGD(weights, lr=0.5)
    scaler = torch.amp.GradScaler("cpu")
    path = []
    for batch, target in zip(inputs, targets, strict=True):
        loss = (batch @ weights[0] + weights[1] - target).square().mean()
        norm = train_step(weights, optimizer, scaler, loss, limit)
        path.append([torch.cat(weights).tolist(), norm])
    return path


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    rank = dist.get_rank()
    torch.manual_seed(rank)
    inputs = torch.randn(20, 8, 2, dtype=torch.float64)
    targets = inputs @ torch.tensor([2.0, -1.0], dtype=torch.float64) + 0.5
    path = train(inputs, targets, limit=1.0)
    if rank == 0:
        for step in (0, 9, 19):
            weights, norm = path[step]
            print(f"step {step + 1:2}  weights {[round(value, 4) for value in weights]}  norm {norm:,.1f}")
        print("the weights should reach [2, -1, 0.5]")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
