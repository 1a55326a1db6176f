"""Wrong and right answers to question 26.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "the_first_axis_fastest", "numbers the ranks column by column: tp crosses the cable",
        check="the_right_ranks", says="the group of rank 0 over tp has the ranks [0, 2], not [0, 1]",
        look="which axis counts fastest", edit="""
        -    grid = torch.arange(world).view(*sizes.values())
        +    grid = torch.arange(world).view(*reversed(sizes.values())).permute(*reversed(range(len(sizes))))
    """),
    WrongAnswer(
        "agree_and_differ_mixed_up", "takes the axes on which the ranks of a group agree",
        check="the_right_ranks", says="the group of rank 0 over tp has the ranks [0, 2], not [0, 1]", look="on which they agree",
        edit="""
        -        lines = grid.permute(*rest, *own).reshape(-1, math.prod(sizes[axis] for axis in axes))
        +        lines = grid.permute(*own, *rest).reshape(math.prod(sizes[axis] for axis in axes), -1)
    """),
    WrongAnswer(
        "one_axis_of_several", "takes the first axis of an entry alone",
        check="the_right_ranks", says="the group of rank 0 over dp and tp has the ranks [0, 2], not [0, 1, 2, 3]",
        look="an entry with two axes", edit="""
             for axes in over:
        +        axes = axes[:1]
    """),
    WrongAnswer(
        "step_of_the_next_axis", "steps along an axis by the size of the next one, forgetting those after it",
        check="the_right_ranks", says="(pp 2 x dp 1 x tp 2): the group of rank 0 over pp has the ranks [0, 1], not [0, 2]",
        look="the product of the sizes", text='''
        import math

        import torch.distributed as dist


        def groups(sizes, over):
            rank, world, names = dist.get_rank(), dist.get_world_size(), list(sizes)
            if math.prod(sizes.values()) != world:
                raise ValueError(f"a mesh of {math.prod(sizes.values())} ranks, but there are {world}")
            steps = {name: sizes[after] for name, after in zip(names, names[1:])} | {names[-1]: 1}
            found = []
            for axes in over:
                lines = set()
                for one in range(world):
                    members = {one}
                    for axis in axes:
                        place = lambda other: other // steps[axis] % sizes[axis]
                        members = {m + (new - place(m)) * steps[axis] for m in members for new in range(sizes[axis])}
                    lines.add(tuple(sorted(members)))
                for line in sorted(lines):
                    group = dist.new_group(list(line))
                    if rank in line:
                        mine = group
                found.append(mine)
            return found
    '''),
    WrongAnswer(
        "axes_side_by_side", "takes the axes of an entry for one long axis, though another one may lie between them",
        check="the_right_ranks", says="(pp 2 x dp 2 x tp 1): the group of rank 0 over pp and tp has the ranks [0, 1], not [0, 2]",
        look="another axis may lie between", edit="""
        -        own = [names.index(axis) for axis in axes]
        -        rest = [number for number in range(len(names)) if number not in own]
        -        lines = grid.permute(*rest, *own).reshape(-1, math.prod(sizes[axis] for axis in axes))
        -        for line in lines.tolist():
        +        many, last = math.prod(sizes[axis] for axis in axes), max(names.index(axis) for axis in axes)
        +        step = math.prod(sizes[name] for name in names[last + 1 :])
        +        for line in grid.reshape(-1, many, step).transpose(1, 2).reshape(-1, many).tolist():
    """),
    WrongAnswer(
        "all_ranks_everywhere", "returns the group of all ranks for each entry",
        check="the_right_ranks", says="over tp has the ranks [0, 1, 2, 3], not [0, 1]", look="which group", edit="""
                     if rank in line:
        -                found.append(group)
        +                found.append(dist.group.WORLD)
    """),
    WrongAnswer(
        "none_when_alone", "has no group for a rank that is alone",
        check="a_group_per_entry", says="returned [ProcessGroup, NoneType, ProcessGroup", look="a rank that is alone", edit="""
        -            group = dist.new_group(line)
        +            group = dist.new_group(line) if len(line) > 1 else None
    """),
    WrongAnswer(
        "by_axis", "returns a dict",
        check="a_group_per_entry", says="returned a dict, not 3 process groups", edit="""
        -    return found
        +    return dict(zip(map(tuple, over), found))
    """),
    WrongAnswer(
        "lists_of_ranks", "returns the ranks, and builds no group",
        check="a_group_per_entry", says="returned [list, list, list], not 3 process groups", edit="""
        -            group = dist.new_group(line)
        -            if rank in line:
        -                found.append(group)
        +            if rank in line:
        +                found.append(line)
    """),
    WrongAnswer(
        "once_per_rank", "builds each group once for every rank of it",
        check="each_group_is_built_once", says="rank 0 is in 8 new groups; 3 were asked for", look="once for each of its",
        edit="""
        -        for line in lines.tolist():
        -            group = dist.new_group(line)
        -            if rank in line:
        -                found.append(group)
        +        for one in range(world):
        +            [line] = [line for line in lines.tolist() if one in line]
        +            group = dist.new_group(line)
        +            mine = group if rank in line else mine if one else None
        +        found.append(mine)
    """),
    WrongAnswer(
        "built_by_its_ranks_alone", "builds only the groups that it is in, though new_group waits for all ranks",
        check="does not end", says="no end, and nothing moves", look="new_group waits for all ranks", edit="""
        -            group = dist.new_group(line)
        -            if rank in line:
        -                found.append(group)
        +            if rank in line:
        +                found.append(dist.new_group(line))
    """),
    WrongAnswer(
        "no_refusal", "lets torch find that the numbers do not fit",
        check="other_products_are_refused", says="rank 0 raised RuntimeError and no ValueError", look="on every rank", edit="""
        -    if math.prod(sizes.values()) != world:
        -        raise ValueError(f"a mesh of {math.prod(sizes.values())} ranks, but {world} were started")
    """),
    WrongAnswer(
        "rank_0_refuses", "lets rank 0 alone compare, and the others run into torch",
        check="other_products_are_refused", says="(dp 2 x tp 2): rank 1 raised RuntimeError and no ValueError",
        look="on every rank", edit="""
        -    if math.prod(sizes.values()) != world:
        +    if math.prod(sizes.values()) != world and rank == 0:
    """),
    WrongAnswer(
        "too_small_is_accepted", "refuses a mesh that is too large, and leaves ranks out of one that is too small",
        check="other_products_are_refused", says="(dp 1 x tp 1): rank 0 raised no ValueError", look="compare the product",
        edit="""
        -    if math.prod(sizes.values()) != world:
        +    if math.prod(sizes.values()) > world:
        @@
        -    grid = torch.arange(world).view(*sizes.values())
        +    grid = torch.arange(math.prod(sizes.values())).view(*sizes.values())
    """),
    WrongAnswer(
        "says_no_numbers", "refuses without the numbers",
        check="other_products_are_refused", says="without 4 or without 2", look="a message with", edit="""
        -        raise ValueError(f"a mesh of {math.prod(sizes.values())} ranks, but {world} were started")
        +        raise ValueError("the sizes do not fit the number of ranks")
    """),
    WrongAnswer(
        "rank_0_deals_out", "lets rank 0 compute the lines and send them to all",
        check="nothing_is_sent", says="rank 0 started", look="can compute", edit="""
        -        for line in lines.tolist():
        +        lines = lines.contiguous()
        +        dist.broadcast(lines, src=0)
        +        for line in lines.tolist():
    """),
    RightAnswer(
        "by_coordinates", "computes each rank's coordinates by division, and lets torch enumerate", text='''
        import torch.distributed as dist


        def groups(sizes, over):
            world, product = dist.get_world_size(), 1
            steps = {}
            for axis in reversed(sizes):
                steps[axis] = product
                product *= sizes[axis]
            if product != world:
                raise ValueError(f"{product} places for {world} ranks")
            found = []
            for axes in over:
                lines = {}
                for rank in range(world):
                    rest = tuple(rank // steps[axis] % sizes[axis] for axis in sizes if axis not in axes)
                    lines.setdefault(rest, []).append(rank)
                own, _ = dist.new_subgroups_by_enumeration(list(lines.values()))
                found.append(own)
            return tuple(found)
    '''),
    RightAnswer(
        "its_own_groups_only", "builds only the groups that it is in, whose members alone wait for each other", edit="""
        -            group = dist.new_group(line)
        -            if rank in line:
        -                found.append(group)
        +            if rank in line:
        +                found.append(dist.new_group(line, use_local_synchronization=True))
    """),
)  # fmt: skip
