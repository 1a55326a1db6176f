# mistake: takes the zero_grad at the start of an epoch out
# state: wrong
# check: every micro batch counts once
# message: adds the rest to the next epoch

import contextlib

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class OneWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, inputs):
        return self.weight + 0 * inputs.sum()


def update_sizes(train, epochs, micro_batches, accumulate):
    module, sizes = OneWeight(), []
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    optimizer.register_step_pre_hook(lambda *_: sizes.append(module.weight.grad.item()))
    train(module, optimizer, [[torch.ones(3)] * micro_batches] * epochs, accumulate)
    return sizes


def train(module, optimizer, epochs, accumulate):
    model = DistributedDataParallel(module)
    for micro_batches in epochs:
        for i, inputs in enumerate(micro_batches):
            last = (i + 1) % accumulate == 0
            with contextlib.nullcontext() if last else model.no_sync():
                (model(inputs) / accumulate).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
