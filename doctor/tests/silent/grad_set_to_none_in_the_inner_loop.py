# check: accumulated
import contextlib

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train():
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = torch.nn.CrossEntropyLoss()
    for _step in range(3):
        for micro in range(2):
            with model.no_sync() if micro == 0 else contextlib.nullcontext():
                for parameter in model.parameters():
                    parameter.grad = None
                inputs = torch.randn(8, 4)
                criterion(model(inputs), inputs[:, :3].argmax(1)).backward()  # HERE
        optimizer.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
