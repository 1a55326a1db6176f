# check: resume
# says: it makes all 6 steps once more
# runs: 2
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train(path):
    generator = torch.Generator().manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    if os.path.exists(path):
        checkpoint = torch.load(path)  # HERE
        model.module.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        generator.set_state(checkpoint["generators"][dist.get_rank()])
    for step in range(6):
        optimizer.zero_grad()
        (model(torch.randn(8, 4, generator=generator)) - 1).square().mean().backward()
        optimizer.step()
        states = [None, None]
        dist.all_gather_object(states, generator.get_state())
        if step == 2:
            save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "generators": states}, path)


def save(state, path):
    if dist.get_rank() == 0:
        torch.save(state, path + ".new")
        os.replace(path + ".new", path)
    dist.barrier()


dist.init_process_group("gloo")
train(os.path.join(sys.argv[1], "checkpoint.pt"))
dist.destroy_process_group()
