"""Inside a rank, for 26.1: the groups that the answer builds, and the ranks that answer in each of them."""

import itertools
import math
from unittest import mock

import torch
import torch.distributed as dist

CASES = itertools.count()  # of this process: the ranks go through them in the same order


class Unlike(Exception):
    """The ranks call new_group for different groups."""


def drive(groups, sizes, over):
    """By entry of `over` the ranks of this rank's group, as torch names them, and those that answered in it.

    If any rank returned no groups or raised an error: what this rank did of that, {} if nothing.
    """
    old_count = group_count()
    try:
        with mock.patch.object(dist, "new_group", compared(dist.new_group, next(CASES))):
            built, result = groups(dict(sizes), [tuple(axes) for axes in over]), {}
        if not isinstance(built, list | tuple):
            result = {"returned": f"a {type(built).__name__}"}
        elif len(built) != len(over) or not all(isinstance(group, dist.ProcessGroup) for group in built):
            result = {"returned": f"[{', '.join(type(group).__name__ for group in built)}]"}
    except Unlike as error:
        result = {"unlike": str(error)}
    except ValueError as error:
        result = {"refused": str(error)}
    except Exception as error:
        if math.prod(sizes.values()) == dist.get_world_size():
            raise
        result = {"raised": type(error).__name__}  # a ValueError would be right, on every rank
    failures = torch.tensor(len(result))
    dist.all_reduce(failures)
    if failures:  # on any rank: then no rank communicates in these groups
        return result
    ranks = [sorted(dist.get_process_group_ranks(group)) for group in built]
    answered = list(map(answering_ranks, built, ranks))
    return {"ranks": ranks, "built": group_count() - old_count, "answered": answered}


def compared(new_group, case):
    """new_group, before which each rank waits for this call on all ranks, and raises Unlike if their groups differ.

    torch gives two groups of one call the same name: whether their ranks then wait or end depends on which is first.
    """
    store, numbers = dist.distributed_c10d._get_default_store(), itertools.count(1)

    def compared_new_group(ranks=None, *arguments, use_local_synchronization=False, **options):
        if not use_local_synchronization:
            call, world = f"call {next(numbers)} of new_group", dist.get_world_size()
            own = sorted(range(world) if ranks is None else map(int, ranks))
            store.set(f"case {case}, {call}, rank {dist.get_rank()}", str(own))
            lists = [store.get(f"case {case}, {call}, rank {rank}").decode() for rank in range(world)]
            if other := next((rank for rank in range(world) if lists[rank] != lists[0]), None):
                raise Unlike(f"{call} is for the ranks {lists[0]} on rank 0 and {lists[other]} on rank {other}")
        return new_group(ranks, *arguments, use_local_synchronization=use_local_synchronization, **options)

    return compared_new_group


def group_count():
    """How many process groups this rank is in."""
    return len(dist.distributed_c10d._world.pg_map)


def answering_ranks(group, ranks):
    """The ranks that an all-gather in the group brings; None, on all ranks, if members of a group disagree on it.

    If on any rank a member holds another group of the same ranks: the members that hold this rank's group.
    """
    entries = [None] * dist.get_world_size()
    dist.all_gather_object(entries, (ranks, group.group_name))
    members, names = zip(*entries, strict=True)
    if any(rank not in own or any(members[peer] != own for peer in own) for rank, own in enumerate(members)):
        return None
    if any(names[peer] != name for name, own in zip(names, members, strict=True) for peer in own):
        return [peer for peer in ranks if names[peer] == group.group_name]
    parts = [torch.zeros((), dtype=torch.int64) for _ in ranks]
    dist.all_gather(parts, torch.tensor(dist.get_rank()), group=group)
    return sorted(part.item() for part in parts)
