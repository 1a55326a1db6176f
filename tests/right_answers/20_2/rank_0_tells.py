# route: rounded-up local batches kept inside; reduced to rank 0, which divides and broadcasts its dictionary

import torch
import torch.distributed as dist


def pairs_of(total, batch, rank, world):
    room = (batch + world - 1) // world
    for first in range(0, total, batch):
        stop = min(first + batch, total)
        start = min(first + rank * room, stop)
        yield start, min(start + room, stop)


def is_sound(shares):
    """Three sizes are enough, if nothing in them divides anything else."""
    for total, batch, world in ((23, 7, 4), (5, 11, 3), (9, 7, 2), (1, 2, 5), (30, 5, 1), (12, 12, 5), (16, 6, 4)):
        free = torch.ones(total + 1)
        free[total] = 0
        lists = [shares(total, batch, rank, world) for rank in range(world)]
        for pairs in lists:
            for start, end in pairs:
                if end < start or start < 0 or end > total or end - start > (batch + world - 1) // world:
                    return False
                free[start:end] -= 1
        if free.any() or any(len(pairs) != len(lists[0]) for pairs in lists):
            return False
    return True


def evaluate(score, total, batch):
    rank, world = dist.get_rank(), dist.get_world_size()
    loss, counts = torch.zeros((), dtype=torch.float64), torch.zeros(2, dtype=torch.int64)
    for start, end in pairs_of(total, batch, rank, world):
        losses, solved = score(start, end)
        loss += losses.sum()
        counts += torch.tensor([int(solved.sum()), len(losses)])
    dist.reduce(loss, dst=0)
    dist.reduce(counts, dst=0)
    told = [None]
    if rank == 0:
        told = [{"loss": loss / counts[1], "accuracy": counts[0] / counts[1], "examples": counts[1]}]
        told = [{name: value.item() for name, value in told[0].items()}]
        told[0]["accuracy"] = counts[0].item() / counts[1].item()
    dist.broadcast_object_list(told, src=0)
    return told[0]
