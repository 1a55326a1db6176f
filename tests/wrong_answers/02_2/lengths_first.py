# mistake: the detector looks at lengths first: where one log ends, though the ranks parted before
# state: wrong
# check: the logs are read right
# message: apart at once, and rank 1 stopped early: where_they_part(

from datetime import timedelta

import torch
import torch.distributed as dist


def where_they_part(logs: list[list[str]]) -> tuple[int, dict[int, str | None]] | None:
    """The first position at which the ranks' logs are not all equal, and each rank's entry there; else None."""

    def entries(position):
        return {rank: log[position] if position < len(log) else None for rank, log in enumerate(logs)}

    lengths = {len(log) for log in logs}
    if len(lengths) > 1:  # somebody stopped: where the shortest log ends
        return min(lengths), entries(min(lengths))
    for position, together in enumerate(zip(*logs, strict=True)):
        if len(set(together)) > 1:
            return position, entries(position)
    return None


def losses(rank):
    """The losses of this rank's samples: float64, 4 samples on rank 0, one more on each further rank."""
    return 2 + 0.5 * rank + 0.1 * torch.arange(4 + rank, dtype=torch.float64)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    rank = dist.get_rank()
    mine = losses(rank)
    dist.barrier()  # everybody has measured

    total = torch.stack([mine.sum(), torch.tensor(len(mine))])
    dist.all_reduce(total)  # every rank takes part ...
    if rank == 0:  # ... and one of them speaks
        print(f"mean loss {total[0] / total[1]:.6f}")

    dist.barrier()  # everybody may leave
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
