# rank: 1
# says: never joined all-reduce
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(4):
    dist.all_reduce(torch.ones(4))
    if rank == 0 and step == 2:
        loss = torch.ones(1)
        dist.all_reduce(loss)  # HERE
dist.barrier()
dist.destroy_process_group()
