# check: samples
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train():
    torch.manual_seed(0)
    data, targets = torch.randn(64, 4), torch.randn(64, 1)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        part = slice(8 * step, 8 * step + 8)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(data[part]), targets[part])  # HERE
        loss.backward()
        optimizer.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
