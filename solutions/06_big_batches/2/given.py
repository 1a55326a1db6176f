"""Two loops of two training scripts. In both, an epoch may end before its last step is full."""

import contextlib
import os
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.nn  # imported later, by an optimizer or DDP, it would keep the group alive past its end
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class OneWeight(nn.Module):
    """Its loss has the gradient 1 in every micro-batch, whatever is in it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, inputs):
        return self.weight + 0 * inputs.sum()


def train(module, optimizer, epochs, accumulate):
    """`epochs`: for each epoch the list of this rank's micro-batches. The module returns the loss of one."""
    model = DistributedDataParallel(module)
    for micro_batches in epochs:
        optimizer.zero_grad()
        for i, inputs in enumerate(micro_batches):
            last = (i + 1) % accumulate == 0
            with contextlib.nullcontext() if last else model.no_sync():
                (model(inputs) / accumulate).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()


def train_without_zero_grad(module, optimizer, epochs, accumulate):
    """The same, but for one line."""
    model = DistributedDataParallel(module)
    for micro_batches in epochs:
        for i, inputs in enumerate(micro_batches):
            last = (i + 1) % accumulate == 0
            with contextlib.nullcontext() if last else model.no_sync():
                (model(inputs) / accumulate).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    for loop in (train, train_without_zero_grad):
        module = OneWeight()
        loop(module, torch.optim.SGD(module.parameters(), lr=1.0), [[torch.ones(3)] * 5] * 2, 2)
        if os.environ["RANK"] == "0":
            print(f"{loop.__name__}: 10 micro-batches, 2 a step; the weight moved by {-module.weight.item():g}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
