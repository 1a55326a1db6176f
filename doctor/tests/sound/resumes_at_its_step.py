# runs: 2
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train(path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
    parts = {"model": model.module, "optimizer": optimizer, "scheduler": scheduler}
    torch.manual_seed(1 + dist.get_rank())
    start = 0
    if os.path.exists(path):
        checkpoint = torch.load(path)
        for name, part in parts.items():
            part.load_state_dict(checkpoint[name])
        start = checkpoint["step"]
        torch.set_rng_state(checkpoint["generators"][dist.get_rank()])
    for step in range(start, 6):
        optimizer.zero_grad()
        (model(torch.randn(8, 4)) - 1).square().mean().backward()
        optimizer.step()
        scheduler.step()
        if step % 2 == 1:
            generators = [None, None]
            dist.all_gather_object(generators, torch.get_rng_state())
            state = {name: part.state_dict() for name, part in parts.items()}
            save(state | {"step": step + 1, "generators": generators}, path)


def save(state, path):
    if dist.get_rank() == 0:
        torch.save(state, path + ".new")
        os.replace(path + ".new", path)
    dist.barrier()


dist.init_process_group("gloo")
train(os.path.join(sys.argv[1], "checkpoint.pt"))
dist.destroy_process_group()
