# rank: 0 1
# says: src=1 on rank 1
# Each rank broadcasts from itself.
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
weights = torch.ones(1000) * rank
dist.broadcast(weights, src=rank)  # HERE
dist.all_reduce(weights)
dist.destroy_process_group()
