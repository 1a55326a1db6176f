# rank: 1
# says: never answered recv
import threading

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(3):
    dist.all_reduce(torch.ones(4))
if rank == 0:
    dist.recv(torch.zeros(4), src=1)  # HERE
else:
    threading.Event().wait()
dist.destroy_process_group()
