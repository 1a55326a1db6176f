import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(4))
if rank == 0:
    end = time.process_time() + 7  # seconds of CPU time, more than --idle: work, not a hang
    while time.process_time() < end:
        sum(range(10000))
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
