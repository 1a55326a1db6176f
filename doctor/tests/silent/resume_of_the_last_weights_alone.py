# check: resume
# says: without the state of its optimizer
# runs: 2
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train(path):
    model = torch.nn.Linear(4, 1)
    if os.path.exists(path):
        model.load_state_dict(torch.load(path))  # HERE
    model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _step in range(4):
        optimizer.zero_grad()
        (model(torch.randn(8, 4)) - 1).square().mean().backward()
        optimizer.step()
    save(model.module.state_dict(), path)


def save(state, path):
    if dist.get_rank() == 0:
        torch.save(state, path + ".new")
        os.replace(path + ".new", path)
    dist.barrier()


dist.init_process_group("gloo")
train(os.path.join(sys.argv[1], "checkpoint.pt"))
dist.destroy_process_group()
