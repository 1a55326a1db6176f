# route: reduces sum and count to rank 0; the detector fills the short logs up first

from datetime import timedelta
from itertools import zip_longest

import torch
import torch.distributed as dist


def where_they_part(logs):
    for position, entries in enumerate(zip_longest(*logs)):
        if any(entry != entries[0] for entry in entries):
            return [position, dict(enumerate(entries))]


def losses(rank):
    return 2 + 0.5 * rank + 0.1 * torch.arange(4 + rank, dtype=torch.float64)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    mine = losses(dist.get_rank())
    total, count = mine.sum(), torch.tensor(len(mine))
    dist.reduce(total, dst=0)
    dist.reduce(count, dst=0)
    if dist.get_rank() == 0:
        print(f"mean loss {total.item() / count.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
