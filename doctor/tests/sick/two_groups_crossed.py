# rank: 0 1
# says: two process groups
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
one, two = dist.new_group([0, 1]), dist.new_group([0, 1])
dist.all_reduce(torch.ones(1))
if rank == 0:
    dist.all_reduce(torch.ones(1), group=one)
    dist.all_reduce(torch.ones(1), group=two)
else:
    dist.all_reduce(torch.ones(1), group=two)  # HERE
    dist.all_reduce(torch.ones(1), group=one)
dist.destroy_process_group()
