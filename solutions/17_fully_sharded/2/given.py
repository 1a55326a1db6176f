"""Shard a model with FSDP2 and train it. Nothing is raised, and the loss falls."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from ddp_course.distributed import process_group

STEPS, BATCH = 20, 12  # of the whole run; samples of the whole batch


class Model(nn.Module):
    """An input layer, blocks and an output layer: the blocks are not all of it."""

    def __init__(self, width=8, blocks=3):
        super().__init__()
        self.enter = nn.Linear(4, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(blocks))
        self.leave = nn.Linear(width, 1)
        self.register_buffer("scale", torch.rand(1) + 0.5)

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = x + block(x)
        return self.leave(x) * self.scale


def prepare(model, learning_rate):
    """The model sharded over all ranks, and its optimizer."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return model, optimizer


def main():
    process_group.start(60, "cpu")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)  # each rank draws weights of its own
    model, optimizer = prepare(Model(), 0.01)
    before = [whole(parameter) for parameter in model.parameters()]
    for step in range(STEPS):
        x = torch.randn(BATCH, 4, generator=torch.Generator().manual_seed(step))[rank::world]
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step in (0, STEPS - 1):
            print(f"step {step:2}: loss {loss:.3f}", flush=True)
    moved = sum(not torch.equal(old, whole(now)) for old, now in zip(before, model.parameters(), strict=True))
    first = whole(model.enter.bias)[0]
    print(f"{moved} of {len(before)} parameters have moved; the first number of enter.bias is {first:.4f}", flush=True)
    del model, optimizer
    process_group.stop()


def whole(parameter):
    parameter = parameter.detach().clone()
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


if __name__ == "__main__":
    main()
