# check: split
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split


def train():
    data = TensorDataset(torch.arange(80.0).view(80, 1) / 7, torch.ones(80, 1))
    training, held_out = random_split(data, [60, 20])
    loader = DataLoader(training, batch_size=5, sampler=DistributedSampler(training))
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    sums = torch.zeros(2)
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    with torch.no_grad():
        for inputs, targets in DataLoader(held_out, batch_size=10):
            sums += torch.tensor([(model.module(inputs) - targets).square().sum(), len(inputs)])  # HERE
    dist.all_reduce(sums)


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
