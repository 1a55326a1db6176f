# rank: 0
# says: never joined broadcast
import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
reading, writing = os.pipe()
for step in range(3):
    dist.all_reduce(torch.ones(4))
if rank == 0:
    os.read(reading, 1)
dist.broadcast(torch.ones(4), src=0)  # HERE
dist.destroy_process_group()
