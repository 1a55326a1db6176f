# mistake: the detector asks only whether the ranks agree with each other
# state: wrong
# check: unsound steps are seen
# message: adds the signs of all gradients

import torch
import torch.distributed as dist


def everyones(tensor):
    """The tensors of all ranks, of equal shapes, in the order of the ranks."""
    received = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(received, tensor)
    return received


def is_joint_step(step) -> bool:
    torch.manual_seed(dist.get_rank())
    table = torch.zeros(12, 2, dtype=torch.float64)
    step(table, torch.randint(9, (8,)), torch.randn(8, 2, dtype=torch.float64), 0.1)
    tables = everyones(table)
    return all(torch.equal(one, tables[0]) for one in tables)


def sparse_step(table, ids, gradients, lr):
    """On every rank: move the rows that any rank has used, in place, against the sign of their gradient."""
    ids, gradients = torch.cat(everyones(ids)), torch.cat(everyones(gradients))
    rows, place = ids.unique(return_inverse=True)
    total = gradients.new_zeros(len(rows), gradients.shape[1]).index_add_(0, place, gradients)
    table[rows] -= lr * total.sign()
