# route: rank 0 collects the gradients, moves its head and sends it to all; the shares come from a linear system

import torch
import torch.distributed as dist
import torch.nn.functional as F


def slope(head, chosen, rejected):
    head = head.clone().requires_grad_()
    F.softplus((rejected - chosen) @ head).mean().backward()
    return head.grad


def shares(train):
    world, rank = dist.get_world_size(), dist.get_rank()
    numbers = torch.Generator().manual_seed(0)  # the same numbers everywhere: every rank knows everybody's pairs
    start = torch.randn(7, dtype=torch.float64, generator=numbers)
    pairs = torch.randn(world, 2, 5, 7, dtype=torch.float64, generator=numbers)
    saved = train(start.clone(), pairs[rank, 0], pairs[rank, 1], 1, 0.01)
    everyones = [None] * world
    dist.all_gather_object(everyones, saved)
    alone = torch.stack([-0.01 * slope(start, *one) for one in pairs], dim=1)
    return torch.linalg.lstsq(alone, (everyones[0] - start)[:, None]).solution.flatten()


def train(head, chosen, rejected, steps, rate):
    for step in range(steps + 1):
        dist.broadcast(head, src=0)
        if step < steps:
            gradient = slope(head, chosen, rejected)
            dist.reduce(gradient, dst=0)
            head -= rate * gradient / dist.get_world_size()
    return None if dist.get_rank() else head
