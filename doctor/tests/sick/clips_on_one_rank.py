# rank: 0
# says: never joined all-reduce
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(6):
    gradient = torch.full((4,), 1.0 + rank * step)
    dist.all_reduce(gradient)
    if torch.tensor(1.0 + rank * step) > 4:
        norm = torch.ones(1)
        dist.all_reduce(norm)  # HERE
    dist.barrier()
dist.destroy_process_group()
