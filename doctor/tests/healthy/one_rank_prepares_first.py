import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
if rank != 0:
    dist.barrier()
time.sleep(0.2)  # downloads, or reads what rank 0 has downloaded
if rank == 0:
    dist.barrier()
for step in range(5):
    dist.all_reduce(torch.ones(4))
gathered = [torch.empty(2) for _ in range(2)] if rank == 0 else None
dist.gather(torch.ones(2), gathered, dst=0)
objects = [{"lr": 0.1, "name": "a" * 100}] if rank == 0 else [None]
dist.broadcast_object_list(objects, src=0)
dist.destroy_process_group()
