# check: averaged
# says: they were frozen when DDP wrapped the model
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train():
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    net[0].requires_grad_(False)
    model = DistributedDataParallel(net)  # HERE
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(6):
        if step == 2:
            net[0].requires_grad_(True)
        optimizer.zero_grad()
        (model(torch.randn(8, 4)) - 1).square().mean().backward()
        optimizer.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
