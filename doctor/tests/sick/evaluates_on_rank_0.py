# rank: 1
# says: under `if rank == 0`
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)))
for epoch in range(2):
    for step in range(3):
        model(torch.randn(8, 4)).sum().backward()
    if rank == 0:
        with torch.no_grad():
            model(torch.randn(8, 4))  # HERE
dist.destroy_process_group()
