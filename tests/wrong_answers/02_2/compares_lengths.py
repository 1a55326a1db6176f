# mistake: the detector compares only how many collectives each rank started
# state: wrong
# check: the logs are read right
# message: rank 0 is alone with a second all_reduce: where_they_part(

from datetime import timedelta

import torch
import torch.distributed as dist


def where_they_part(logs):
    shortest = min(map(len, logs))
    if all(len(log) == shortest for log in logs):
        return None
    return shortest, {rank: log[shortest] if len(log) > shortest else None for rank, log in enumerate(logs)}


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
