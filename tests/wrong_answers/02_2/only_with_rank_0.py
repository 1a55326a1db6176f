# mistake: the detector compares rank 1 with rank 0 and nobody else
# state: wrong
# check: the logs are read right
# message: rank 2 never started: where_they_part(

from datetime import timedelta

import torch
import torch.distributed as dist


def where_they_part(logs):
    if len(logs) == 1:
        return None
    for position in range(max(len(logs[0]), len(logs[1]))):
        entries = {rank: log[position] if position < len(log) else None for rank, log in enumerate(logs)}
        if entries[0] != entries[1]:
            return position, entries
    return None


def losses(rank):
    return 2 + 0.5 * rank + 0.1 * torch.arange(4 + rank, dtype=torch.float64)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    rank = dist.get_rank()
    mine = losses(rank)
    dist.barrier()

    total = torch.stack([mine.sum(), torch.tensor(len(mine))])
    dist.all_reduce(total)
    if rank == 0:
        print(f"mean loss {total[0] / total[1]:.6f}")

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
