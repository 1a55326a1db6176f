# rank: 1
# says: s more)
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(3):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    time.sleep(1000)
dist.all_reduce(torch.ones(4))  # HERE
dist.destroy_process_group()
