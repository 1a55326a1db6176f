# check: accumulated
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train():
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(12):
        loss = (model(torch.randn(8, 4)) - 1).square().mean() / 4
        optimizer.zero_grad()  # HERE
        loss.backward()
        if (step + 1) % 4 == 0:
            optimizer.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
