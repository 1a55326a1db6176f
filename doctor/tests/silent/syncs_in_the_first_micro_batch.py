# check: averaged
# says: the last pass before a step ran under no_sync
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train():
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(8):
        model.require_backward_grad_sync = step % 4 == 0
        ((model(torch.randn(8, 4)) - 1).square().mean() / 4).backward()  # HERE
        if step % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
