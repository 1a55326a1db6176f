# check: scale
# says: learning rate grows 4-fold
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train():
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    lr = 0.01 * dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr * dist.get_world_size())  # HERE
    for _step in range(4):
        optimizer.zero_grad()
        (model(torch.randn(8, 4)) - 1).square().mean().backward()
        optimizer.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
