# rank: 0 1
# says: two process groups
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
dist.all_reduce(torch.ones(1))
if rank == 0:
    dist.all_reduce(torch.ones(1), group=first)
    dist.all_reduce(torch.ones(1), group=second)
else:
    dist.all_reduce(torch.ones(1), group=second)  # HERE
    dist.all_reduce(torch.ones(1), group=first)
dist.destroy_process_group()
