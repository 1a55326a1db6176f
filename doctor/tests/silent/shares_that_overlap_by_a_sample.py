# check: samples
# says: 1 sample is
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train():
    torch.manual_seed(0)
    data = torch.randn(80, 4)
    size = len(data) // dist.get_world_size()
    begin = dist.get_rank() * size
    share = data[max(0, begin - 1) : begin + size]
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        (model(share[10 * step : 10 * step + 10]) - 1).square().mean().backward()  # HERE
        optimizer.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
