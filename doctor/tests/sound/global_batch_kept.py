import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train():
    torch.manual_seed(0)
    data = torch.randn(96, 4)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    micros = 4 // world_size
    for step in range(4):
        own_samples = data[24 * step + rank : 24 * step + 24 : world_size].chunk(micros)
        optimizer.zero_grad()
        for micro, batch in enumerate(own_samples):
            model.require_backward_grad_sync = micro == micros - 1
            loss = (model(batch) - 1).square().mean() / micros
            loss.backward()
        optimizer.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
