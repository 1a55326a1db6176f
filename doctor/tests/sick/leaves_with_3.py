# rank: 1
# says: sys.exit(3)
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(5):
    dist.all_reduce(torch.ones(4))
    if rank == 1 and step == 3:
        sys.exit(3)  # HERE
dist.destroy_process_group()
