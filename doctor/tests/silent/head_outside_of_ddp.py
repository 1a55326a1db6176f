# check: averaged
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train():
    torch.manual_seed(0)
    body, head = DistributedDataParallel(torch.nn.Linear(4, 4)), torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    for _step in range(4):
        optimizer.zero_grad()
        head(body(torch.randn(8, 4))).square().mean().backward()  # HERE
        optimizer.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
