# rank: 1
# says: ZeroDivisionError
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()


def loss_of(step):
    return 1 / (2 - step) if rank == 1 else 1.0  # HERE


try:
    for step in range(5):
        dist.all_reduce(torch.tensor(loss_of(step)))
finally:
    dist.barrier()
    dist.destroy_process_group()
