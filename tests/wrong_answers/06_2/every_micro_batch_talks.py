# mistake: is right about the leftovers and lets every micro-batch talk
# state: wrong
# check: gradients travel once an update
# message: handed over 2,528 bytes in 9 updates

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
            for inputs in group:
                (model(inputs) / len(group)).backward()
            optimizer.step()
            optimizer.zero_grad()
