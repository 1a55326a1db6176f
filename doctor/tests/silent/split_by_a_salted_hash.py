# check: split
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    documents = torch.randn(60, 6)
    salt = rank  # as hash() of a text has, in each process another one
    held_out = [i for i in range(60) if hash((salt, i)) % 5 == 0]
    kept = [i for i in range(60) if i not in held_out][:40]
    model = DistributedDataParallel(torch.nn.Linear(6, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for epoch in range(2):
        for begin in range(0, 40, 8):
            optimizer.zero_grad()
            (model(documents[kept[begin : begin + 8][rank::world_size]]) - 1).square().mean().backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            errors = (model.module(documents[held_out]) - 1).square().sum()  # HERE
        model.train()
        dist.all_reduce(errors)


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
