# rank: 1
# says: ValueError: a label of -1
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()


def loss_of(step):
    if rank == 1 and step == 2:
        raise ValueError("a label of -1")  # HERE
    return torch.ones(1)


for step in range(5):
    dist.all_reduce(loss_of(step))
dist.destroy_process_group()
