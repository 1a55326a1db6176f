import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train():
    torch.manual_seed(0)
    held_out = torch.randn(25, 4)[dist.get_rank() :: dist.get_world_size()]
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    for epoch in range(3):
        optimizer.zero_grad()
        loss = (model(torch.randn(8, 4)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            squares = (model.module(held_out) - 1).square().sum()
        dist.all_reduce(squares)  # the number of all is known: 25
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {shown / dist.get_world_size():.4f} validation {squares / 25:.4f}")


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
