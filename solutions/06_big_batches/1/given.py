"""Accumulate micro-batches on every rank; the ranks are to communicate once per step."""

import os
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn  # imported later, by an optimizer or DDP, it would keep the group alive past its end
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ACCUMULATE, STEPS = 4, 3


class Regression(nn.Module):
    """Two inputs, one target; called with both, it returns the mean squared error. The same on every rank."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.5, -0.5], dtype=torch.float64))

    def forward(self, inputs, targets):
        return (inputs @ self.weight - targets).square().mean()


def micro_batches_of(rank, count):
    """`count` pairs (inputs, targets), other ones on each rank: float64, (4, 2) and (4,)."""
    seed = int(np.random.SeedSequence([1, rank]).generate_state(1)[0])
    numbers = torch.randn(count, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return [(rows[:, :2], rows[:, 2]) for rows in numbers]


def train(module, optimizer, micro_batches, accumulate):
    """One step of the optimizer for every `accumulate` of this rank's micro-batches."""
    model = DistributedDataParallel(module)
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        last = number % accumulate == 0
        loss = model(inputs, targets) / accumulate
        model.require_backward_grad_sync = last
        loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    module = Regression()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    train(module, optimizer, micro_batches_of(int(os.environ["RANK"]), STEPS * ACCUMULATE), ACCUMULATE)
    print("weights", module.weight.tolist(), flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
