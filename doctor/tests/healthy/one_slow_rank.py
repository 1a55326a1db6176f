import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(4):
    if rank == 1:
        time.sleep(2)
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
