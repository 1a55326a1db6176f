# check: state
import copy

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def evaluate(model, data):
    sums = torch.zeros(2)
    with torch.no_grad():
        sums += torch.tensor([(model(data) - 1).square().sum(), len(data)])  # HERE
    dist.all_reduce(sums)
    return sums[0] / sums[1]


def train():
    torch.manual_seed(0)
    held_out = torch.randn(24, 4)[dist.get_rank() :: dist.get_world_size()]
    net = torch.nn.Linear(4, 1)
    ema = copy.deepcopy(net)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    for _step in range(4):
        optimizer.zero_grad()
        (model(torch.randn(8, 4)) - 1).square().mean().backward()
        optimizer.step()
        if dist.get_rank() == 0:
            with torch.no_grad():
                for a, b in zip(ema.parameters(), net.parameters(), strict=True):
                    a.lerp_(b, 0.1)
        evaluate(ema, held_out)


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
