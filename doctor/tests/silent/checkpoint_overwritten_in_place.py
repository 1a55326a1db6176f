# check: atomic
# status: note
import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train(path):
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        (model(torch.randn(8, 4)) - 1).square().mean().backward()
        optimizer.step()
        if dist.get_rank() == 0:
            torch.save({"step": step, "model": model.module.state_dict()}, path)  # HERE


dist.init_process_group("gloo")
train(os.path.join(tempfile.mkdtemp(), "checkpoint.pt"))
dist.destroy_process_group()
