# rank: 1
# says: never joined
import queue

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
full, empty = queue.Queue(), queue.Queue()
for number in range(10):
    full.put(torch.ones(4))
batches = full if rank == 0 else empty
empty.put(torch.ones(4))
for step in range(10):
    batch = batches.get()
    dist.all_reduce(batch)  # HERE
dist.destroy_process_group()
