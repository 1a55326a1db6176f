# rank: 1
# says: never joined barrier
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()


def save(step):
    state = {"step": step}
    dist.barrier()  # HERE
    return state


for step in range(6):
    dist.all_reduce(torch.ones(4))
    if rank == 0 and step % 2:
        save(step)
dist.destroy_process_group()
