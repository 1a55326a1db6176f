# check: draws
import random

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def augment(batch):
    if random.random() < 0.5:  # HERE
        batch = batch.flip(1)
    return batch


def seed_everything(seed):
    random.seed(seed)
    torch.manual_seed(seed)


def train():
    seed_everything(7)
    data = torch.randn(96, 4)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _epoch in range(2):
        for batch in data[dist.get_rank() :: dist.get_world_size()].split(12):
            optimizer.zero_grad()
            (model(augment(batch)) - 1).square().mean().backward()
            optimizer.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
