"""Wrong and right answers to question 02.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "divides_on_every_rank", "a rank without values divides by zero",
        state="crashed", check="raises",
        says="(rank 1 has no values): rank 1 raised ZeroDivisionError: division by zero", edit="""
        -    total = torch.tensor([sum(values), len(values)], dtype=torch.float64)
        +    mean = sum(values) / len(values)
        +    total = torch.tensor([mean * len(values), len(values)], dtype=torch.float64)
    """),
    WrongAnswer(
        "empty_ranks_stay_away", "a rank without values does not join the all-reduce",
        check="does not end", says="rank 0 was in all_reduce (line 9), rank 1 was in barrier (line 11)", edit="""
        -    dist.all_reduce(total)
        +    if values:
        +        dist.all_reduce(total)
        +    else:
        +        dist.barrier()
    """),
    WrongAnswer(
        "float32", "adds in float32, torch's default for a list of floats",
        check="the_mean_is_exact",
        says="(30 million and 1, minus 30 million and 1, 2): rank 0 returned 0.4", edit="""
        -    total = torch.tensor([sum(values), len(values)], dtype=torch.float64)
        +    total = torch.tensor([float(sum(values)), len(values)])
    """),
    WrongAnswer(
        "gathers_all_values", "sends every value to every rank",
        check="few_bytes_are_sent", says="bytes to all_gather for its 3,000 values", text="""
        import math

        import torch.distributed as dist


        def global_mean(values):
            lists = [None] * dist.get_world_size()
            dist.all_gather_object(lists, values)
            values = [value for part in lists for value in part]
            return math.fsum(values) / len(values)
    """),
    WrongAnswer(
        "integers_on_an_empty_rank", "builds an int64 tensor where the list is empty: sum([]) is 0, not 0.0",
        state="crashed", check="dies", says="was killed by SIGABRT", edit="""
        -    total = torch.tensor([sum(values), len(values)], dtype=torch.float64)
        +    total = torch.tensor([sum(values), len(values)])
    """),
    WrongAnswer(
        "mean_of_means", "averages the ranks' means",
        check="the_mean_is_exact", says="the mean of the ranks' means; the mean over all values is", edit="""
        -    total = torch.tensor([sum(values), len(values)], dtype=torch.float64)
        +    mean = sum(values) / len(values) if values else 0.0
        +    total = torch.tensor([mean, float(bool(values))], dtype=torch.float64)
    """),
    WrongAnswer(
        "nothing_on_other_ranks", "returns the mean on rank 0 and nothing elsewhere",
        check="every_rank_returns_a_number", says="rank 1 returned None", edit="""
        -    return (total[0] / total[1]).item()
        +    if dist.get_rank() == 0:
        +        return (total[0] / total[1]).item()
    """),
    WrongAnswer(
        "starts_with_its_own", "each rank adds its own sum first, so that the last bits differ",
        check="the_ranks_agree", says="(one value each: 0.4, 0.6, 0.7): rank 2 returned", text="""
        import torch
        import torch.distributed as dist


        def global_mean(values):
            rank, world = dist.get_rank(), dist.get_world_size()
            pair = torch.tensor([sum(values), len(values)], dtype=torch.float64)
            pairs = [torch.empty_like(pair) for _ in range(world)]
            dist.all_gather(pairs, pair)
            for other in range(world):
                if other != rank:
                    pair = pair + pairs[other]
            return (pair[0] / pair[1]).item()
    """),
    WrongAnswer(
        "no_rank_waits", "starts the all-reduce and never waits for it",
        check="every_rank_returns_a_number", says="returned nan",
        look="it only starts all_reduce, and rank 0 never calls wait()", edit="""
        -    dist.all_reduce(total)
        +    dist.all_reduce(total, async_op=True)
    """),
    RightAnswer(
        "gathers_pairs", "all-gathers (sum, count) as Python objects and adds them with fsum",
        text="""
        import math

        import torch.distributed as dist


        def global_mean(values):
            pairs = [None] * dist.get_world_size()
            dist.all_gather_object(pairs, (math.fsum(values), len(values)))
            sums, counts = zip(*pairs, strict=True)
            return math.fsum(sums) / sum(counts)
    """),
    RightAnswer(
        "rank_0_adds", "sends sum and count to rank 0, which adds and broadcasts",
        text="""
        import torch
        from torch.distributed import broadcast, get_rank, get_world_size, recv, send


        def global_mean(values):
            total = torch.tensor([sum(values), len(values)], dtype=torch.float64)
            if get_rank() > 0:
                send(total, dst=0)
            else:
                for source in range(1, get_world_size()):
                    other = torch.empty_like(total)
                    recv(other, src=source)
                    total += other
            broadcast(total, src=0)
            return total[0] / total[1]
    """),
    RightAnswer(
        "waits_for_two", "two all-reduces at once; waits for one through its future, and polls is_completed() of the other",
        edit="""
        -    total = torch.tensor([sum(values), len(values)], dtype=torch.float64)
        -    dist.all_reduce(total)
        -    return (total[0] / total[1]).item()
        +    total = torch.tensor(float(sum(values)), dtype=torch.float64)
        +    count = torch.tensor(len(values))
        +    first, second = dist.all_reduce(total, async_op=True), dist.all_reduce(count, async_op=True)
        +    [total] = first.get_future().wait()
        +    while not second.is_completed():
        +        pass
        +    return total.numpy() / count.numpy()
    """),
    RightAnswer(
        "functional_collectives", "functional collectives, which change no tensor; returns a fraction",
        text="""
        from fractions import Fraction

        import torch
        import torch.distributed as dist
        import torch.distributed._functional_collectives as collectives


        def global_mean(values):
            own = torch.tensor([sum(values), len(values)], dtype=torch.float64)
            total, count = collectives.all_reduce(own, "sum", dist.group.WORLD).tolist()
            return Fraction(total) / int(count)
    """),
)
