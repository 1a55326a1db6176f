"""Train on several processes and leave tidily, whatever happens. One of rank 1's samples is broken."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist


def train(rank):
    for step in range(10):
        if rank == 1 and step == 3:
            raise ValueError("sample 3: token 70000 is outside the vocabulary of 65536")
        dist.all_reduce(torch.ones(1))  # stands for a training step
        time.sleep(0.01)


def run(train, timeout_seconds):
    """Join the process group, call train(rank), leave the group."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_seconds))
    try:
        train(dist.get_rank())
    finally:
        dist.barrier()  # no rank leaves before the others are done
        dist.destroy_process_group()


if __name__ == "__main__":
    run(train, timeout_seconds=6)
