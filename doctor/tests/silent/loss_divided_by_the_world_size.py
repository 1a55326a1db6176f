# check: scale
# says: 2 times too small
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train():
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _step in range(4):
        optimizer.zero_grad()
        loss = (model(torch.randn(8, 4)) - 1).square().mean()
        loss = loss / dist.get_world_size()
        loss.backward()  # HERE
        optimizer.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
