# rank: 1
# says: never joined all-reduce 3
# nproc: 1
# Ranks forked by hand; rank 1 has done fewer steps and waits in a barrier.
import multiprocessing
import os
import socket

import torch
import torch.distributed as dist


def train(rank, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
    dist.init_process_group("gloo")
    for step in range(4 - 2 * rank):
        dist.all_reduce(torch.ones(4) * step)  # HERE
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=train, args=(rank, port)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
