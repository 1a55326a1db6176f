# check: replicas
# says: on rank 1 they are changed between two steps
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train():
    model = DistributedDataParallel(torch.nn.Linear(40, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        optimizer.zero_grad()
        (model(torch.randn(8, 40)) - 1).square().mean().backward()
        if step == 2 and dist.get_rank() == 1:
            with torch.no_grad():
                model.module.weight[0, 17] += 1e-3
        optimizer.step()  # HERE


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
