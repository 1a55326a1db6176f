# check: scale
# says: learning rate grows 4-fold
import os

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train():
    world_size = int(os.environ["WORLD_SIZE"])
    data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3 * world_size)  # HERE
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: world_size * min(1.0, (step + 1) / 4))
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        warmup.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
