import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train():
    world_size = dist.get_world_size()
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * world_size, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02 * world_size, total_steps=24 // world_size)
    for _step in range(24 // world_size):
        optimizer.zero_grad()
        for micro in range(2):
            model.require_backward_grad_sync = micro == 1
            ((model(torch.randn(8, 4)) - 1).square().mean() / 2).backward()
        optimizer.step()
        schedule.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
