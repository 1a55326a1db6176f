# mistake: averages the weights after each step, not the gradients before it
# state: wrong
# check: every micro batch counts once
# message: 4 an update, AdamW: rank

import torch
from torch import nn


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
    for micro_batches in epochs:
        for first in range(0, len(micro_batches), accumulate):
            group = micro_batches[first : first + accumulate]
            for inputs in group:
                (module(inputs) / len(group)).backward()
            optimizer.step()
            optimizer.zero_grad()
            for parameter in module.parameters():
                torch.distributed.all_reduce(parameter.data)
                parameter.data /= torch.distributed.get_world_size()
