"""Inside a rank, for 26.1: the groups that the answer builds, and who answers in each of them."""

import math

import torch
import torch.distributed as dist


def drive(groups, sizes, over):
    """By entry of `over`: the ranks of this rank's group as torch names them, and those that answered in it."""
    old = memberships()
    try:
        built, result = groups(dict(sizes), [tuple(axes) for axes in over]), {}
        if not isinstance(built, list | tuple):
            result = {"returned": f"a {type(built).__name__}"}
        elif len(built) != len(over) or not all(isinstance(group, dist.ProcessGroup) for group in built):
            result = {"returned": f"[{', '.join(type(group).__name__ for group in built)}]"}
    except ValueError as error:
        result = {"refused": str(error)}
    except Exception as error:
        if math.prod(sizes.values()) == dist.get_world_size():
            raise
        result = {"raised": type(error).__name__}  # where a ValueError is due, on every rank
    strange = torch.tensor(len(result))
    dist.all_reduce(strange)
    if strange:  # on this rank or another one: then nobody communicates in these groups
        return result
    ranks = [sorted(dist.get_process_group_ranks(group)) for group in built]
    return {"ranks": ranks, "built": memberships() - old, "answered": [*map(answers, built, ranks)]}


def memberships():
    """How many groups this rank is in."""
    return len(dist.distributed_c10d._world.pg_map)


def answers(group, ranks):
    """The ranks that a gather in the group brings; None if the members do not agree on who belongs to it."""
    mask = torch.tensor(sum(2**rank for rank in ranks))
    masks = [torch.zeros_like(mask) for _ in range(dist.get_world_size())]
    dist.all_gather(masks, mask)
    masks = [own.item() for own in masks]
    if any(
        masks[other] != masks[rank]
        for rank in range(len(masks))
        for other in range(len(masks))
        if masks[rank] >> other & 1
    ) or not all(masks[rank] >> rank & 1 for rank in range(len(masks))):
        return None
    parts = [torch.zeros((), dtype=torch.int64) for _ in ranks]
    dist.all_gather(parts, torch.tensor(dist.get_rank()), group=group)
    return sorted(part.item() for part in parts)
