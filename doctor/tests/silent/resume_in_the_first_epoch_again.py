# check: resume
# says: it reads the data of the beginning again
# runs: 2
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train(path):
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(48, 4))
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    done = 0
    if os.path.exists(path):
        checkpoint = torch.load(path)  # HERE
        model.module.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        done = checkpoint["epochs"]
    for epoch in range(3 - done):
        loader.sampler.set_epoch(epoch)
        for (batch,) in loader:
            optimizer.zero_grad()
            (model(batch) - 1).square().mean().backward()
            optimizer.step()
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epochs": done + epoch + 1}
        save(state, path)


def save(state, path):
    if dist.get_rank() == 0:
        torch.save(state, path + ".new")
        os.replace(path + ".new", path)
    dist.barrier()


dist.init_process_group("gloo")
train(os.path.join(sys.argv[1], "checkpoint.pt"))
dist.destroy_process_group()
