# check: dropout
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train():
    torch.manual_seed(0)
    data = torch.randn(4, 16, 4)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        batch = data[step, dist.get_rank() :: dist.get_world_size()]
        optimizer.zero_grad()
        loss = model(batch).square().mean()  # HERE
        loss.backward()
        optimizer.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
