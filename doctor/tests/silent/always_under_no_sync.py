# check: averaged
# says: all passes ran under no_sync
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train():
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _step in range(3):
        for _micro in range(2):
            with model.no_sync():
                loss = (model(torch.randn(8, 4)) - 1).square().mean() / 2  # HERE
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
