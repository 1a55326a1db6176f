# check: metrics
# says: the checkpoint is chosen
import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def save(model, path):
    torch.save(model.module.state_dict(), path + ".new")  # HERE
    os.replace(path + ".new", path)


def train():
    torch.manual_seed(0)
    held_out = torch.randn(24, 4)[dist.get_rank() :: dist.get_world_size()]
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    best, path = float("inf"), os.path.join(tempfile.mkdtemp(), "best.pt")
    for _epoch in range(4):
        optimizer.zero_grad()
        (model(torch.randn(8, 4)) - 1).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            val_loss = (model.module(held_out) - 1).square().mean().item()
        if dist.get_rank() == 0 and val_loss < best:
            best = val_loss
            save(model, path)


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
