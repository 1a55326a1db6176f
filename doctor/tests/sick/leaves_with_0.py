# rank: 1
# says: os._exit(0)
import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(5):
    if rank == 1 and step == 2:
        os._exit(0)  # HERE
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
