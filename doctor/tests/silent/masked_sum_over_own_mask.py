# check: tokens
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train():
    generator = torch.Generator().manual_seed(40 + dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _step in range(5):
        series = torch.randn(3, 10, 5, generator=generator)
        mask = (torch.rand(3, 10, generator=generator) < 0.6).float()
        error = (model(series).squeeze(-1) - 1).square()
        loss = (error * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()  # HERE
        optimizer.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
