import copy
import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    model = DistributedDataParallel(net)
    ema = copy.deepcopy(net).requires_grad_(False)
    only_here = copy.deepcopy(net) if dist.get_rank() == 0 else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    held_out = torch.randn(8, 4)
    path = os.path.join(tempfile.mkdtemp(), "ema.pt")
    history = torch.zeros(4)
    for step in range(4):
        optimizer.zero_grad()
        loss = (model(torch.randn(8, 4)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        history[step] = loss.detach()
        with torch.no_grad():
            for copy_of_model in filter(None, (ema, only_here)):
                for a, b in zip(copy_of_model.parameters(), net.parameters(), strict=True):
                    a.lerp_(b, 0.1)
            ema.eval()
            ema(held_out)
        if dist.get_rank() == 0:
            torch.save({"ema": ema.state_dict(), "mine": only_here.state_dict(), "loss": loss}, path + ".new")
            os.replace(path + ".new", path)


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
