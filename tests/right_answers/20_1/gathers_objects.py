# route: dictionaries of sums, gathered as objects; rank 0 judges and tells the others

import torch
import torch.distributed as dist


def joint(table, pairs, lr):
    for row in sorted({row for ids, _ in pairs for row in ids.tolist()}):
        table[row] -= lr * torch.cat([gradients[ids == row] for ids, gradients in pairs]).sum(dim=0).sign()
    return table


def is_joint_step(step) -> bool:
    rank, world = dist.get_rank(), dist.get_world_size()
    numbers = torch.Generator().manual_seed(3)
    pairs = [
        (torch.randint(6, (10,), generator=numbers), torch.randn(10, 3, generator=numbers, dtype=torch.float64))
        for _ in range(world)
    ]
    table = torch.ones(8, 3, dtype=torch.float64)
    step(table, *pairs[rank], 0.25)
    tables = [torch.empty_like(table) for _ in range(world)] if rank == 0 else None
    dist.gather(table, tables)
    verdict = [None]
    if rank == 0:
        right = joint(torch.ones(8, 3, dtype=torch.float64), pairs, 0.25)
        verdict = [all(torch.allclose(one, right, rtol=0, atol=1e-9) for one in tables)]
    dist.broadcast_object_list(verdict, src=0)
    return verdict[0]


def sparse_step(table, ids, gradients, lr):
    pairs = [None] * dist.get_world_size()
    dist.all_gather_object(pairs, (ids, gradients))
    joint(table, pairs, lr)
