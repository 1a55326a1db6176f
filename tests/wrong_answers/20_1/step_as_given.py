# mistake: the detector is right, the step is as it was
# state: wrong
# check: equals one process
# message: row 0 on rank 0 has moved by +2 learning rates, not by +1

import torch
import torch.distributed as dist


def everyones(tensor):
    """The tensors of all ranks, of equal shapes, in the order of the ranks."""
    received = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(received, tensor)
    return received


def is_joint_step(step) -> bool:
    """Whether `step` leaves, on every rank, the table of one process that takes the joint batch."""
    world, rank, lr = dist.get_world_size(), dist.get_rank(), 0.1
    torch.manual_seed(0)
    start = torch.randn(12, 2, dtype=torch.float64)
    ids = torch.randint(9, (world, 8))
    gradients = torch.randn(world, 8, 2, dtype=torch.float64)

    table, total = start.clone(), torch.zeros_like(start)
    step(table, ids[rank], gradients[rank], lr)
    total.index_add_(0, ids.flatten(), gradients.flatten(0, 1))
    gap = (table - (start - lr * total.sign())).abs().max()
    dist.all_reduce(gap, dist.ReduceOp.MAX)
    return gap.item() < 1e-10


def sparse_step(table, ids, gradients, lr):
    updates = lr * gradients.sign()
    table[ids] -= updates
    for their_ids, their_updates in zip(everyones(ids), everyones(updates), strict=True):
        table[their_ids] -= their_updates
