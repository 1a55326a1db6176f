# check: resume
# says: its optimizer does not have the state that it had
# runs: 2
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train(path):
    torch.manual_seed(0)
    data = torch.randn(64, 4)
    model, start = torch.nn.Linear(4, 1), 0
    if os.path.exists(path):
        checkpoint = torch.load(path)  # HERE
        model.load_state_dict(checkpoint["model"])
        start = checkpoint["step"]
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(start, 6):
        batch = data[dist.get_rank() :: 2][4 * step : 4 * step + 4]
        optimizer.zero_grad()
        (model(batch) - 1).square().mean().backward()
        optimizer.step()
        if step % 2 == 1:
            save({"step": step + 1, "model": model.module.state_dict()}, path)


def save(state, path):
    if dist.get_rank() == 0:
        torch.save(state, path + ".new")
        os.replace(path + ".new", path)
    dist.barrier()


dist.init_process_group("gloo")
train(os.path.join(sys.argv[1], "checkpoint.pt"))
dist.destroy_process_group()
