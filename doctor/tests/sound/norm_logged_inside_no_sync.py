import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train():
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    norms = []
    for _step in range(3):
        optimizer.zero_grad()
        with model.no_sync():
            ((model(torch.randn(8, 4)) - 3).square().mean() / 2).backward()
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf")))  # only measures
        ((model(torch.randn(8, 4)) - 3).square().mean() / 2).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
