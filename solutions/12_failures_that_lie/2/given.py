"""Train on all ranks, and look after each step whether the replicas are still equal."""

from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.nn  # imported later, by an optimizer, it would keep the group alive past its end
from torch import nn


def odd_ranks(model, optimizer):
    """The ranks that do not hold what most of the ranks hold; [] if all hold the same."""
    total = torch.stack([parameter.sum() for parameter in model.parameters()]).sum()
    totals = [torch.zeros_like(total) for _ in range(dist.get_world_size())]
    dist.all_gather(totals, total)
    return [rank for rank, other in enumerate(totals) if not torch.isclose(other, totals[0], rtol=1e-3)]


def flip(tensor, bit):
    """Turn over one bit of the first number, of 32: 0 is the last of the fraction, 23 the last of the exponent."""
    first = tensor.view(-1)[:1].view(torch.int32)
    first ^= 1 << bit


def train(steps=4):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    torch.manual_seed(rank + 1)
    for step in range(steps):
        inputs = torch.randn(16, 64)
        loss = (model(inputs) - inputs.mean(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer.step()
        if rank == 1 and step == 1:
            flip(optimizer.state[model[0].weight]["exp_avg_sq"], bit=26)
        odd = odd_ranks(model, optimizer)
        if rank == 0:
            print(f"step {step}: loss {loss.item():.3f}, odd ranks {odd}")
    firsts = [torch.zeros(()) for _ in range(world)]
    dist.all_gather(firsts, model[0].weight.detach()[0, 0])
    if rank == 0:
        print("the first weight on each rank:", " ".join(f"{first:.6f}" for first in firsts))


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    train()
    dist.destroy_process_group()
