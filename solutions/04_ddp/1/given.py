"""The review of 04.1 put to the test, on any number of ranks: rank 0 prints each gap before and after as JSON."""

import json
import os

import torch
import torch.distributed as dist
import torch.distributed.nn  # imported later, by an optimizer or DDP, it would keep the group alive past its end
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 20


class Model(nn.Module):
    """A parameter, a buffer and a plain attribute, with other values on every rank."""

    def __init__(self, rank):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4, dtype=torch.float64))
        self.register_buffer("mean", torch.empty(4, dtype=torch.float64))
        self.table = torch.empty(4, dtype=torch.float64)
        values = torch.Generator().manual_seed(rank)
        for tensor in (self.weight.data, self.mean, self.table):
            tensor.uniform_(-1, 1, generator=values)

    def forward(self, inputs):
        return ((inputs - self.mean) * self.weight).sum(1) + self.table.sum()

    def gaps(self):
        return {"parameters": gap(self.weight), "buffers": gap(self.mean), "attributes": gap(self.table)}


def gap(tensor):
    """The largest difference between any two ranks."""
    largest, smallest = tensor.detach().clone(), tensor.detach().clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    dist.all_reduce(smallest, dist.ReduceOp.MIN)
    return (largest - smallest).max().item()


def train(rank, wrap):
    """{kind of tensor: (gap when the model is made, gap after 20 steps)}; without `wrap`, averaged by hand."""
    model = Model(rank)
    before = model.gaps()
    forward = wrap(model) if wrap else model
    for step in range(STEPS):
        inputs = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(10 * step + rank))
        model.zero_grad()
        forward(inputs).square().mean().backward()
        if not wrap:
            dist.all_reduce(model.weight.grad)
            model.weight.grad /= dist.get_world_size()
        model.weight.data -= 0.05 * model.weight.grad
    return {kind: (before[kind], after) for kind, after in model.gaps().items()}


def masks(rank):
    """The gap between the ranks' dropout masks: after unlike seeds, and after one for all."""
    gaps = []
    for seed in (rank, 42):
        torch.manual_seed(seed)
        gaps.append(gap(nn.functional.dropout(torch.ones(64))))
    return gaps


def main():
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    wrapped = train(rank, DistributedDataParallel)
    measured = {f"{kind}, DDP": gaps for kind, gaps in wrapped.items()}
    without = train(rank, lambda model: DistributedDataParallel(model, init_sync=False))
    measured["parameters, DDP(init_sync=False)"] = without["parameters"]
    measured["parameters, averaged by hand"] = train(rank, None)["parameters"]
    measured["dropout masks, one seed on every rank"] = masks(rank)
    if rank == 0:
        print(json.dumps(measured))


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
