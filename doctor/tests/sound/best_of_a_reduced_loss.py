import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train():
    torch.manual_seed(0)
    whole = torch.randn(24, 4)
    held_out = whole[dist.get_rank() :: dist.get_world_size()]
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    best, folder = [float("inf")] * 2, tempfile.mkdtemp()
    for _epoch in range(4):
        optimizer.zero_grad()
        (model(torch.randn(8, 4)) - 1).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            val_loss = (model.module(held_out) - 1).square().mean()
            dist.all_reduce(val_loss)
            if dist.get_rank() == 0 and val_loss < best[0]:
                best[0] = val_loss.item()
                torch.save(model.module.state_dict(), os.path.join(folder, "best.new"))
                os.replace(os.path.join(folder, "best.new"), os.path.join(folder, "best.pt"))
            if dist.get_rank() == 0:  # rank 0 alone, on all of the data
                val_loss = (model.module(whole) - 1).square().mean()
                if val_loss < best[1]:
                    best[1] = val_loss.item()
                    torch.save(model.module.state_dict(), os.path.join(folder, "other.new"))
                    os.replace(os.path.join(folder, "other.new"), os.path.join(folder, "other.pt"))


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
