import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(2):
    if dist.get_rank() == 1:
        time.sleep(9)  # reads from a slow disk
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
