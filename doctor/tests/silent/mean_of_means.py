# check: metrics
# says: over shares of 13 and 12
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def evaluate(model, data):
    with torch.no_grad():
        loss = (model(data) - 1).square().mean()
    dist.all_reduce(loss)  # HERE
    return loss / dist.get_world_size()


def train():
    torch.manual_seed(0)
    held_out = torch.randn(25, 4)[dist.get_rank() :: dist.get_world_size()]
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    for epoch in range(3):
        optimizer.zero_grad()
        (model(torch.randn(8, 4)) - 1).square().mean().backward()
        optimizer.step()
        value = evaluate(model.module, held_out)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} validation {value:.4f}")


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
