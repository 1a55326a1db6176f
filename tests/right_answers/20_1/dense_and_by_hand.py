# route: a gradient as large as the table, all-reduced; the detector goes row by row, and gathers verdicts

import torch
import torch.distributed as dist


def is_joint_step(step) -> bool:
    """Puzzles whose joint moves are known without computing: 0 down, 1 up, the others stay."""
    rank, world = dist.get_rank(), dist.get_world_size()
    table = torch.tensor([[5.0], [5.0], [5.0], [5.0]], dtype=torch.float64)
    # Row 0: the last rank outweighs all others. Row 1: twice on each rank, each rank in its own order.
    first = 10.0 * world if rank == world - 1 else -1.0
    gradients = torch.tensor([[first], [-3.0], [1.0]], dtype=torch.float64)
    step(table, torch.tensor([0, 1, 1]).roll(rank), gradients.roll(rank, dims=0), 0.5)
    right = table.flatten().sub(torch.tensor([4.5, 5.5, 5.0, 5.0], dtype=torch.float64)).abs().max() < 1e-12
    verdicts = [None] * world
    dist.all_gather_object(verdicts, bool(right))
    return all(verdicts)


def sparse_step(table, ids, gradients, lr):
    total = torch.zeros_like(table)
    for row, gradient in zip(ids.tolist(), gradients, strict=True):
        total[row] += gradient
    dist.all_reduce(total)
    table -= lr * torch.sign(total)
