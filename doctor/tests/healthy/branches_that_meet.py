import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(3):
    if rank == 0:
        weights = torch.ones(4)
        dist.broadcast(weights, src=0)
    else:
        weights = torch.empty(4)
        dist.broadcast(weights, src=0)
    dist.all_reduce(weights)
if rank == 0:
    dist.scatter(torch.empty(2), [torch.ones(2)] * dist.get_world_size(), src=0)
else:
    dist.scatter(torch.empty(2), src=0)
dist.destroy_process_group()
