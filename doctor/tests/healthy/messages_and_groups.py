import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
single_rank_groups = [dist.new_group([rank]) for rank in range(2)]
pair = dist.new_group([0, 1])
for step in range(4):
    if rank == 0:
        dist.send(torch.ones(3), dst=1)
    else:
        dist.recv(torch.empty(3), src=0)
        dist.all_reduce(torch.ones(1), group=single_rank_groups[1])
    dist.all_reduce(torch.ones(2), group=pair)
    dist.all_reduce(torch.ones(3))
dist.destroy_process_group()
