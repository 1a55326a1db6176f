# mistake: the detector compares the sums of the weights
# state: wrong
# check: parting replicas are seen
# message: rank 1 ends with two numbers exchanged

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.5, -0.5], dtype=torch.float64))

    def forward(self, inputs, targets):
        return (inputs @ self.weight - targets).square().mean()


def micro_batches_of(rank, count):
    numbers = torch.randn(count, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))
    return [(one[:, :2], one[:, 2]) for one in numbers]


def replicas_agree(train):
    module = Regression()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    train(module, optimizer, micro_batches_of(dist.get_rank(), 12), 4)
    weight = module.weight.detach()
    weight = weight.sum()
    everyones = [torch.empty_like(weight) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, weight)
    return all(torch.equal(one, everyones[0]) for one in everyones)


def train(module, optimizer, micro_batches, accumulate):
    model = DistributedDataParallel(module)
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        last = number % accumulate == 0
        with contextlib.nullcontext() if last else model.no_sync():
            loss = model(inputs, targets) / accumulate
            loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
