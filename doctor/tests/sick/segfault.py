# rank: 1
# says: SIGSEGV
import ctypes

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(5):
    dist.all_reduce(torch.ones(4))
    if rank == 1 and step == 3:
        ctypes.string_at(0)  # HERE
dist.destroy_process_group()
