# rank: 1
# says: never joined broadcast
import threading

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
lock = threading.Lock()
for step in range(3):
    with lock:
        if rank == 1 and step == 2:
            lock.acquire()
    dist.broadcast(torch.ones(4), src=0)  # HERE
dist.destroy_process_group()
