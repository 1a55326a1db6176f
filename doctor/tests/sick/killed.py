# rank: 1
# says: SIGKILL
import os
import signal

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(5):
    dist.all_reduce(torch.ones(4))
    if rank == 1 and step == 3:
        torch.ones(1000).sum()
        os.kill(os.getpid(), signal.SIGKILL)
dist.destroy_process_group()
