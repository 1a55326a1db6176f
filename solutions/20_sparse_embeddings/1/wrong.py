"""Wrong and right answers to question 20.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "detector_asks_each_rank_for_itself", "each rank's verdict is about its own table",
        check="all_ranks_agree", says="the last rank moves a row that no rank used", edit="""
        -    dist.all_reduce(gap.nan_to_num_(torch.inf), dist.ReduceOp.MAX)  # MAX may drop a NaN
    """),
    WrongAnswer(
        "detector_expects_its_own_batch", "the detector expects what its own batch alone would do",
        check="right_versions_pass", says="gathers ids and gradients", edit="""
        -    total.index_add_(0, ids.flatten(), gradients.flatten(0, 1))
        +    total.index_add_(0, ids[rank], gradients[rank])
    """),
    WrongAnswer(
        "detector_of_rank_0", "rank 0 compares, and the other ranks say True",
        check="all_ranks_agree", says="returned True on rank 1 and False on rank 0", edit="""
        -    dist.all_reduce(gap.nan_to_num_(torch.inf), dist.ReduceOp.MAX)  # MAX may drop a NaN
        -    return gap.item() < 1e-10
        +    return rank != 0 or gap.item() < 1e-10
    """),
    WrongAnswer(
        "detector_takes_a_thousandth", "the detector tolerates a gap of a thousandth",
        check="broken_versions_are_caught", says="by 1e-6", edit="""
        -    return gap.item() < 1e-10
        +    return gap.item() < 1e-3
    """),
    WrongAnswer(
        "detector_without_duplicates", "the detector's ranks have no row in common, and none twice",
        check="broken_versions_are_caught", says="adds the signs of all gradients", edit="""
        -    start = torch.randn(12, 2, dtype=torch.float64)
        -    ids = torch.randint(9, (world, 8))
        +    start = torch.randn(40, 2, dtype=torch.float64)
        +    ids = torch.arange(world * 8).view(world, 8)
    """),
    WrongAnswer(
        "step_adds_its_own_first", "each rank sums its own gradients first, then the others': an order of its own",
        check="replicas_stay_equal", says="1 learning rates apart", edit="""
        -    ids, gradients = torch.cat(all_gathered(ids)), torch.cat(all_gathered(gradients))
        -    rows, positions = ids.unique(return_inverse=True)
        -    total = gradients.new_zeros(len(rows), gradients.shape[1]).index_add_(0, positions, gradients)
        -    table[rows] -= lr * total.sign()
        +    rank, total = dist.get_rank(), torch.zeros_like(table)
        +    pairs = list(zip(all_gathered(ids), all_gathered(gradients), strict=True))
        +    for their_ids, their_gradients in [pairs[rank], *pairs[:rank], *pairs[rank + 1 :]]:
        +        total.index_add_(0, their_ids, their_gradients)
        +    table -= lr * total.sign()
    """),
    WrongAnswer(
        "step_reduces_by_place", "all-reduces the gradients as DDP does, each rank keeping its own ids",
        check="equals_one_process", says="learning rates, not by", edit="""
        -    ids, gradients = torch.cat(all_gathered(ids)), torch.cat(all_gathered(gradients))
        +    dist.all_reduce(gradients)
    """),
    WrongAnswer(
        "detector_tries_twice", "the detector calls step a second time, on the same table",
        check="it_is_called_once", says="is_joint_step called step 2 times on rank 0", edit="""
        -    step(table, ids[rank], gradients[rank], lr)
        +    for _ in range(2):
        +        step(table, ids[rank], gradients[rank], lr / 2)
    """),
    WrongAnswer(
        "sums_in_float32", "adds the gradients in a tensor of the default dtype",
        check="equals_one_process", says="(a sum that is 0 in float32): row 0 on rank 0 has moved by", look="the dtype",
        edit="""
        -    total = gradients.new_zeros(len(rows), gradients.shape[1]).index_add_(0, positions, gradients)
        -    table[rows] -= lr * total.sign()
        +    total = torch.zeros(len(rows), gradients.shape[1]).index_add_(0, positions, gradients.float())
        +    table[rows] -= lr * total.sign()
    """),
    RightAnswer(
        "dense_and_by_hand",
        "a gradient as large as the table, all-reduced; the detector goes row by row, and gathers verdicts",
        text='''
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
    '''),
    RightAnswer(
        "gathers_objects", "dictionaries of sums, gathered as objects; rank 0 judges and broadcasts its verdict",
        text="""
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
                verdict = [all(torch.allclose(table, right, rtol=0, atol=1e-9) for table in tables)]
            dist.broadcast_object_list(verdict, src=0)
            return verdict[0]


        def sparse_step(table, ids, gradients, lr):
            pairs = [None] * dist.get_world_size()
            dist.all_gather_object(pairs, (ids, gradients))
            joint(table, pairs, lr)
    """),
    RightAnswer(
        "sparse_tensors", "sums in a sparse tensor",
        edit="""
        -    rows, positions = ids.unique(return_inverse=True)
        -    total = gradients.new_zeros(len(rows), gradients.shape[1]).index_add_(0, positions, gradients)
        -    table[rows] -= lr * total.sign()
        +    total = torch.sparse_coo_tensor(ids[None], gradients, table.shape).coalesce()
        +    table.index_add_(0, total.indices()[0], -lr * total.values().sign())
    """),
)
