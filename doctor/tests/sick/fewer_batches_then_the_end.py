# rank: 1
# says: had ended with exit code 0
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
batches = torch.randn(7 if rank == 0 else 5, 8)
for batch in batches:
    dist.all_reduce(batch)  # HERE
