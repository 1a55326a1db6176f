# rank: 1
# says: other types
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(3):
    time.sleep(0.1)  # a step of training
    loss = torch.ones(2, dtype=torch.float32)
    if rank == 1 and step == 2:
        loss = loss.double()
    dist.all_reduce(loss)  # HERE
dist.destroy_process_group()
