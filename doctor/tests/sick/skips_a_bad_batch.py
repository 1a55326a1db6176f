# rank: 1
# says: never joined all-reduce 5
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()


def grade(step):
    if rank == 1 and step == 1:
        raise ValueError("a bad batch")
    return torch.ones(1)


for step in range(4):
    dist.all_reduce(torch.ones(1))
    try:
        dist.all_reduce(grade(step))
    except ValueError:
        continue
    dist.all_reduce(torch.zeros(1))
dist.destroy_process_group()
