import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split


def train():
    data = TensorDataset(torch.arange(80.0).view(80, 1) / 7, torch.ones(80, 1))
    training, held_out = random_split(data, [60, 20], torch.Generator().manual_seed(0))
    loader = DataLoader(training, batch_size=5, sampler=DistributedSampler(training))
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    with torch.no_grad():
        held_out_error = sum(
            (model.module(inputs) - targets).square().sum() for inputs, targets in DataLoader(held_out, 10)
        )
        training_error = sum((model.module(inputs) - targets).square().sum() for inputs, targets in loader)
    dist.all_reduce(training_error)
    if dist.get_rank() == 0:
        print(f"held out {held_out_error / 20:.4f} training {training_error / 60:.4f}")


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
