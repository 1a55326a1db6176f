import os
import py_compile
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset


def build():
    layers = [torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)]
    return torch.nn.Sequential(*layers)


def evaluate(model, data):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    sums = torch.zeros(2)
    model.eval()
    with torch.no_grad():
        for inputs, targets in DataLoader(Subset(data, range(rank, len(data), world_size)), batch_size=4):
            sums += torch.tensor([(model(inputs) - targets).square().sum().item(), len(inputs)])
    model.train()
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def save(model, optimizer, epoch, path):
    if dist.get_rank() == 0:
        torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, path + ".new")
        os.replace(path + ".new", path)
    dist.barrier()


def train(folder):
    for rank in range(dist.get_world_size()):
        if rank == dist.get_rank():
            py_compile.compile(__file__)  # as Python does with a module that is imported for the first time
        dist.barrier()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(52, 4), torch.randn(52, 1))
    held_out = TensorDataset(torch.randn(25, 4), torch.randn(25, 1))
    model = DistributedDataParallel(build())
    torch.manual_seed(1 + dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        with tempfile.TemporaryFile() as scratch:
            torch.save(loss.detach(), scratch)
        value = evaluate(model.module, held_out)
        average = loss.detach().clone()
        dist.all_reduce(average)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {average / dist.get_world_size():.4f} validation {value:.4f}")
        save(model.module, optimizer, epoch, os.path.join(folder, "checkpoint.pt"))


dist.init_process_group("gloo", timeout=timedelta(minutes=5))
train(tempfile.mkdtemp() if dist.get_rank() == 0 else "")
dist.destroy_process_group()
