import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train():
    generator = torch.Generator().manual_seed(dist.get_rank())
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _step in range(3):
        with model.no_sync():  # DDP sends the buffers in the next step's first forward pass, not in between
            (model(torch.randn(8, 4, generator=generator)).square().mean() / 2).backward()
        (model(torch.randn(8, 4, generator=generator)).square().mean() / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
