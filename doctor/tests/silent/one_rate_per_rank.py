# check: replicas
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train():
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _step in range(4):
        loss = (model(torch.randn(8, 4)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * min(1.0, loss.item())  # each rank has its own loss
        optimizer.step()  # HERE


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
