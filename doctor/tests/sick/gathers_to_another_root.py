# rank: 0 1
# says: dst=0 on rank 1
# The ranks reduce to different roots.
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
root = 1 - rank
values = [torch.zeros(3) for _ in range(2)] if rank == root else None
dist.gather(torch.ones(3), values, dst=root)  # HERE
dist.barrier()
dist.destroy_process_group()
