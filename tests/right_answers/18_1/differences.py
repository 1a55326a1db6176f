# route: heads are averaged after every step; the detector runs each rank's pairs alone and compares lengths

import torch
import torch.distributed as dist


def slopes(head, chosen, rejected):
    gap = chosen - rejected
    return -(torch.sigmoid(-(gap @ head))[:, None] * gap).mean(0)


def told_by_rank_0(tensor):
    box = torch.zeros(dist.get_world_size(), 2, dtype=torch.float32) if tensor is None else tensor.clone()
    dist.broadcast(box, src=0)
    return box


def shares(train):
    """Rank r's pairs all lie in a plane of two features of its own; the head starts somewhere."""
    rank, world = dist.get_rank(), dist.get_world_size()
    start = torch.linspace(0.5, -0.5, 2 * world)
    marks = torch.zeros(world, 4, 2 * world)
    for one in range(world):
        marks[one, :, 2 * one : 2 * one + 2] = torch.tensor([[1.0, 0.5], [0.2, -1.0], [2.0, 1.0], [0.0, 0.3]])
    saved = train(start.clone(), marks[rank], -marks[rank], 1, 0.1)
    moved = (told_by_rank_0(None if saved is None else saved.view(world, 2)) - start.view(world, 2)).flatten()
    result = []
    for one in range(world):
        alone = -0.1 * slopes(start, marks[one], -marks[one])
        result.append((moved @ alone / (alone @ alone)).item())
    return result


def train(head, chosen, rejected, steps, rate):
    world = dist.get_world_size()
    head.mul_(float(dist.get_rank() == 0))
    dist.all_reduce(head)
    for _ in range(steps):
        head.sub_(slopes(head, chosen, rejected), alpha=rate)
        dist.all_reduce(head)
        head.div_(world)
    if dist.get_rank() == 0:
        return head.clone()
