# check: once
# status: note
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train():
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _step in range(3):
        optimizer.zero_grad()
        for _micro in range(4):
            loss = (model(torch.randn(8, 4)) - 1).square().mean() / 4
            loss.backward()  # HERE
        optimizer.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
