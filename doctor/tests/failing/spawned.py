import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29873")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    dist.all_reduce(torch.ones(4))
    if rank == 1:
        raise ValueError("a label of -1")
    dist.all_reduce(torch.ones(4))


if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
