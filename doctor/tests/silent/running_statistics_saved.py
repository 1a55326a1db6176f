# check: state
import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


class Normalizer:
    def __init__(self, size):
        self.mean, self.count = torch.zeros(size), 0

    def __call__(self, x):
        self.count += 1
        self.mean += (x.mean(0) - self.mean) / self.count
        return x - self.mean


def train():
    normalizer = Normalizer(4)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path = os.path.join(tempfile.mkdtemp(), "policy.pt")
    for _step in range(4):
        optimizer.zero_grad()
        (model(normalizer(torch.randn(8, 4) + 2)) - 1).square().mean().backward()
        optimizer.step()
    if dist.get_rank() == 0:
        torch.save({"model": model.module.state_dict(), "mean": normalizer.mean}, path + ".new")  # HERE
        os.replace(path + ".new", path)


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
