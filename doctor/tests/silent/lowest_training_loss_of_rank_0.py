# check: metrics
# says: its own batch
import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train():
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    lowest, path = None, os.path.join(tempfile.mkdtemp(), "model.pt")
    for _step in range(6):
        loss = (model(torch.randn(8, 4)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            if lowest is None or loss.item() < lowest:
                lowest = loss.item()
                torch.save(model.module.state_dict(), path + ".part")  # HERE
                os.replace(path + ".part", path)


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
