# mistake: makes up for a short update by a larger learning rate
# state: wrong
# check: every micro batch counts once
# message: 4 an update, AdamW: rank

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
        for first in range(0, len(micro_batches), accumulate):
            group = micro_batches[first : first + accumulate]
            for number, inputs in enumerate(group, start=1):
                with contextlib.nullcontext() if number == len(group) else model.no_sync():
                    (model(inputs) / accumulate).backward()
            for settings in optimizer.param_groups:
                settings["lr"] *= accumulate / len(group)
            optimizer.step()
            for settings in optimizer.param_groups:
                settings["lr"] /= accumulate / len(group)
            optimizer.zero_grad()
