# route: divides the gradients before the step; the detector watches the weight at every forward

import torch
import torch.distributed as dist
from torch import nn


class Watched(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.seen = []

    def forward(self, inputs):
        self.seen.append(self.weight.item())
        return self.weight.sum()


def update_sizes(train, epochs, micro_batches, accumulate):
    module = Watched()
    batches = [[torch.zeros(1)] * micro_batches for _ in range(epochs)]
    train(module, torch.optim.SGD(module.parameters(), lr=2.0**-10), batches, accumulate)
    places = [*module.seen, module.weight.item()]
    return [(a - b) * 2**10 for a, b in zip(places, places[1:], strict=False) if a != b]


def train(module, optimizer, epochs, accumulate):
    for micro_batches in epochs:
        waiting = 0
        for place, inputs in enumerate(micro_batches, start=1):
            module(inputs).backward()
            waiting += 1
            if waiting == accumulate or place == len(micro_batches):
                for parameter in module.parameters():
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= waiting * dist.get_world_size()
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
                waiting = 0
