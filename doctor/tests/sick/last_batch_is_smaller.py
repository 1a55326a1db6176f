# rank: 1
# says: other sizes
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
data = torch.randn(16 if rank == 0 else 14, 3)
for batch in data.split(4):
    scores = batch.sum(1)
    dist.all_reduce(scores)  # HERE
dist.destroy_process_group()
