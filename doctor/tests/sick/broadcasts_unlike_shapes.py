# rank: 1
# says: other sizes
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(3):
    dist.barrier()
features = torch.ones(4 - rank, 2)
dist.broadcast(features, src=0)  # HERE
dist.destroy_process_group()
