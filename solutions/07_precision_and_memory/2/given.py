"""Two weights are learned in float16 on all ranks. Now and then a batch holds a number too large for it."""

from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.nn  # imported later, by an optimizer, it would keep the group alive past its end
from torch.nn.functional import linear


def average_gradient(weight):
    """As DDP does in backward: the gradient becomes its mean over the ranks."""
    dist.all_reduce(weight.grad)
    weight.grad /= dist.get_world_size()


def train(batches, scale):
    """batches: (inputs (batch, 2), targets (batch, 1)) of this rank. By step: [the weights, the scale], afterwards."""
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
        if torch.isfinite(loss):  # a batch that has overflowed must not touch the weights
            scaler.step(optimizer)
            scaler.update()
        history.append([weight[0].tolist(), scaler.get_scale()])
    return history


def example_batches(rank):
    """Twenty batches that follow one line; in the sixth of rank 1 stands a number that float16 cannot hold."""
    generator = torch.Generator().manual_seed(rank)
    batches = []
    for step in range(20):
        inputs = torch.randn(8, 2, generator=generator)
        targets = inputs @ torch.tensor([[1.0], [-0.5]]) + 0.3 * torch.randn(8, 1, generator=generator)
        if rank == 1 and step == 5:
            inputs[0, 0] = 1e6
        batches.append((inputs, targets))
    return batches


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    rank = dist.get_rank()
    history = train(example_batches(rank), scale=1024.0)
    if rank == 0:
        for step in (0, 4, 5, 6, 19):
            weights, scale = history[step]
            print(f"step {step + 1:2}  weights {[round(value, 3) for value in weights]}  scale {scale:,.0f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
