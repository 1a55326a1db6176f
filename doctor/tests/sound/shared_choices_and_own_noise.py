import random

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train():
    random.seed(5)
    np.random.seed(5 + dist.get_rank())
    torch.manual_seed(5)
    data = torch.randn(96, 4)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _epoch in range(2):
        order = list(range(len(data)))
        random.shuffle(order)  # the same on all ranks, so that the shares are apart
        for batch in data[order[dist.get_rank() :: dist.get_world_size()]].split(12):
            width = random.choice([3, 4])  # one size for all ranks
            batch = batch + torch.from_numpy(np.random.normal(0, 0.1, batch.shape)).float()
            batch[:, width:] = 0
            optimizer.zero_grad()
            (model(batch) - 1).square().mean().backward()
            optimizer.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
