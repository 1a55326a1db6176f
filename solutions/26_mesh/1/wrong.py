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
        "axes_side_by_side", "takes the axes of an entry for adjacent ones, though another axis may lie between them",
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
        "none_when_alone", "has no group for a rank that is alone",
        check="a_group_per_entry", says="returned [ProcessGroup, NoneType, ProcessGroup", look="a rank that is alone", edit="""
        -            group = dist.new_group(line)
        +            group = dist.new_group(line) if len(line) > 1 else None
    """),
    WrongAnswer(
        "by_axis", "returns a dict",
        check="a_group_per_entry", says="returned a dict, not 3 process groups", edit="""
        -    return result
        +    return dict(zip(map(tuple, over), result))
    """),
    WrongAnswer(
        "once_per_rank", "builds each group once for every rank of it",
        check="each_group_is_built_once", says="rank 0 is in 8 new groups; 3 were asked for", look="once for each of its",
        edit="""
        -        for line in lines.tolist():
        -            group = dist.new_group(line)
        -            if rank in line:
        -                result.append(group)
        +        for peer in range(world):
        +            [line] = [line for line in lines.tolist() if peer in line]
        +            group = dist.new_group(line)
        +            own_group = group if rank in line else own_group if peer else None
        +        result.append(own_group)
    """),
    WrongAnswer(
        "built_by_its_ranks_alone", "builds only the groups that it is in, though new_group waits for all ranks",
        check="each_group_is_built_once", says="is for the ranks [0, 1] on rank 0 and [2, 3] on rank 2",
        look="new_group waits for all ranks", edit="""
        -            group = dist.new_group(line)
        -            if rank in line:
        -                result.append(group)
        +            if rank in line:
        +                result.append(dist.new_group(line))
    """),
    WrongAnswer(
        "rank_0_refuses_alone", "compares on rank 0 only; the others build groups, for which they wait",
        check="does not end", says="rank 0 had raised ValueError", look="new_group waits for all ranks", edit="""
        -    if math.prod(sizes.values()) != world:
        +    if math.prod(sizes.values()) != world and rank == 0:
        @@
        -    grid = torch.arange(world).view(*sizes.values())
        +    grid = torch.arange(math.prod(sizes.values())).view(*sizes.values())
    """),
    WrongAnswer(
        "rank_0_refuses", "compares on rank 0 only; the others get an error of torch",
        check="other_products_are_refused", says="(dp 2 x tp 2): rank 1 raised RuntimeError and no ValueError",
        look="on every rank", edit="""
        -    if math.prod(sizes.values()) != world:
        +    if math.prod(sizes.values()) != world and rank == 0:
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
            result = []
            for axes in over:
                lines = {}
                for rank in range(world):
                    rest = tuple(rank // steps[axis] % sizes[axis] for axis in sizes if axis not in axes)
                    lines.setdefault(rest, []).append(rank)
                own, _ = dist.new_subgroups_by_enumeration(list(lines.values()))
                result.append(own)
            return tuple(result)
    '''),
    RightAnswer(
        "its_own_groups_only", "builds only the groups that it is in, with use_local_synchronization", edit="""
        -            group = dist.new_group(line)
        -            if rank in line:
        -                result.append(group)
        +            if rank in line:
        +                result.append(dist.new_group(line, use_local_synchronization=True))
    """),
)
