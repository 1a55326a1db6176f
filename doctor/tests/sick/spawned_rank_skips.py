# rank: 1
# says: never joined all-reduce 3
# nproc: 1
# A script that starts its own ranks, one of which leaves a sum out.
import os
import socket
import threading

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank, world_size, port):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    for step in range(4):
        if rank == 1 and step == 2:
            threading.Event().wait()
        dist.all_reduce(torch.ones(4) * step)  # HERE
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as reserved:  # nobody else is given its port before rank 0 listens there
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        mp.spawn(train, args=(2, reserved.getsockname()[1]), nprocs=2)
