"""Seconds of all-reduces of several sizes, each repeated, as rank 0 saw them."""

import json
import time
from datetime import timedelta

import torch
import torch.distributed as dist

SIZES = [64, 2**10, 2**12, 2**14, 2**16, 2**18, 2**20, 2**22, 2**24]
REPEATS = 25


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    seconds = {}
    for size in SIZES:
        tensor, seconds[size] = torch.zeros(size // 4), []
        for _ in range(REPEATS):
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(tensor)
            seconds[size].append(time.perf_counter() - start)
    if dist.get_rank() == 0:
        print(json.dumps(seconds))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
