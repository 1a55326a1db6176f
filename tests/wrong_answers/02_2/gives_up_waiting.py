# mistake: catches the time-out and prints what rank 0 has
# state: wrong
# check: does not end
# message: rank 0 was in all_reduce

from datetime import timedelta

import torch
import torch.distributed as dist


def where_they_part(logs):
    for position in range(max(map(len, logs), default=0)):
        entries = {rank: log[position] if position < len(log) else None for rank, log in enumerate(logs)}
        if len(set(entries.values())) > 1:
            return position, entries
    return None


def losses(rank):
    return 2 + 0.5 * rank + 0.1 * torch.arange(4 + rank, dtype=torch.float64)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    rank = dist.get_rank()
    mine = losses(rank)
    dist.barrier()

    if rank == 0:
        total = torch.stack([mine.sum(), torch.tensor(len(mine))])
        try:
            dist.all_reduce(total)
        except RuntimeError:
            pass
        print(f"mean loss {total[0] / total[1]:.6f}")

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
