"""Wrong and right answers to question 08.3; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "a_message_a_metric", "all-reduces each number by itself",
        check="few_collectives", says="started 3 operations", edit="""
        -    names = sorted(sums)  # a dict keeps the order in which it was filled, and that may differ from rank to rank
        -    total = torch.tensor([*(float(sums[name]) for name in names), count], dtype=torch.float64)
        -    dist.all_reduce(total)
        -    *totals, everything = total.tolist()
        -    return {name: value / everything for name, value in zip(names, totals, strict=True)}
        +    def total(value):
        +        reduced = torch.tensor(float(value), dtype=torch.float64)
        +        dist.all_reduce(reduced)
        +        return reduced.item()
        +
        +    everything = total(count)
        +    return {name: total(sums[name]) / everything for name in sorted(sums)}
    """),
    WrongAnswer(
        "tolerance_of_the_largest", "allows a difference of a millionth of the largest value, however small `observed` is",
        check="the_ranks_in_a_number_are_found", says="small numbers beside a large one", look="add up", edit="""
        -            if math.isclose(sum(values[rank] for rank in ranks), observed, rel_tol=1e-6):
        +            if abs(sum(values[rank] for rank in ranks) - observed) <= 1e-6 * max(map(abs, values)):
    """),
    WrongAnswer(
        "name_count", "puts the count among the metrics, under a name that a metric may have",
        check="every_rank_has_the_metrics", says="a dict with count and loss is expected", edit="""
        -    names = sorted(sums)  # a dict keeps the order in which it was filled, and that may differ from rank to rank
        -    total = torch.tensor([*(float(sums[name]) for name in names), count], dtype=torch.float64)
        +    everything = {**sums, "count": count}
        +    names = sorted(everything)
        +    total = torch.tensor([float(everything[name]) for name in names], dtype=torch.float64)
             dist.all_reduce(total)
        -    *totals, everything = total.tolist()
        -    return {name: value / everything for name, value in zip(names, totals, strict=True)}
        +    reduced = dict(zip(names, total.tolist(), strict=True))
        +    count = reduced.pop("count")
        +    return {name: value / count for name, value in reduced.items()}
    """),
    WrongAnswer(
        "none_elsewhere", "reduces to rank 0 and returns there",
        check="every_rank_has_the_metrics", says="rank 1 returned None",
        edit="""
        -    dist.all_reduce(total)
        -    *totals, everything = total.tolist()
        -    return {name: value / everything for name, value in zip(names, totals, strict=True)}
        +    dist.reduce(total, dst=0)
        +    if dist.get_rank() != 0:
        +        return None
        +    *totals, count = total.tolist()
        +    return {name: value / count for name, value in zip(names, totals, strict=True)}
    """),
    WrongAnswer(
        "sums_not_means", "does not divide",
        check="the_means_are_exact", says="the sum, not the mean", edit="""
        -    *totals, everything = total.tolist()
        -    return {name: value / everything for name, value in zip(names, totals, strict=True)}
        +    *totals, count = total.tolist()
        +    return {name: value for name, value in zip(names, totals, strict=True)}
    """),
    WrongAnswer(
        "empties_its_input", "takes the values out of the dict that it is handed",
        check="the_sums_are_unchanged", says="and holds {} afterwards", look="writes into `sums`", edit="""
        -    total = torch.tensor([*(float(sums[name]) for name in names), count], dtype=torch.float64)
        +    total = torch.tensor([*(float(sums.pop(name)) for name in names), count], dtype=torch.float64)
    """),
    WrongAnswer(
        "order_of_a_set", "takes the values in the order of a set of names, which differs from rank to rank",
        check="the_means_are_exact", says="metrics in another order", look="set has none to rely on", edit="""
        -    names = sorted(sums)  # a dict keeps the order in which it was filled, and that may differ from rank to rank
        +    names = list(set(sums))
    """),
    WrongAnswer(
        "sorts_its_input", "sorts the dict that it is handed",
        check="the_sums_are_unchanged", says="rank 0 handed over {loss: 50.0, correct: 90.0}, and holds", edit="""
             names = sorted(sums)  # a dict keeps the order in which it was filled, and that may differ from rank to rank
        +    for name in names:
        +        sums[name] = sums.pop(name)
    """),
    WrongAnswer(
        "absolute_tolerance", "allows a difference of a millionth, however small `observed` is",
        check="the_ranks_in_a_number_are_found", says="1.1003e-05) returned [0, 1], not None", look="only the seventh digit", edit="""
        -            if math.isclose(sum(values[rank] for rank in ranks), observed, rel_tol=1e-6):
        +            if math.isclose(sum(values[rank] for rank in ranks), observed, rel_tol=1e-6, abs_tol=1e-6):
    """),
    RightAnswer(
        "gathers_objects", "gathers the dicts as they are; subsets as bits",
        text="""
        import torch.distributed as dist


        def who_is_in(values, observed):
            for bits in range(2 ** len(values)):
                ranks = [rank for rank in range(len(values)) if bits >> rank & 1]
                if abs(sum(values[rank] for rank in ranks) - observed) <= 1e-6 * abs(observed):
                    return ranks


        def evaluate(sums, count):
            gathered: list = [None] * dist.get_world_size()
            dist.all_gather_object(gathered, (count, {name: float(value) for name, value in sums.items()}))
            everything = sum(value for value, _ in gathered)
            return {name: sum(value[name] for _, value in gathered) / everything for name in sums}
    """),
    RightAnswer(
        "reduce_and_broadcast", "reduces to rank 0, which broadcasts the sums; every rank divides and returns tensors",
        edit="""
        -    dist.all_reduce(total)
        -    *totals, everything = total.tolist()
        -    return {name: value / everything for name, value in zip(names, totals, strict=True)}
        +    dist.reduce(total, dst=0)
        +    dist.broadcast(total, src=0)
        +    return {name: total[index] / total[-1] for index, name in enumerate(names)}
    """),
    RightAnswer(
        "everything_in_numpy", "gathers arrays and returns NumPy's numbers",
        edit="""
        -    total = torch.tensor([*(float(sums[name]) for name in names), count], dtype=torch.float64)
        -    dist.all_reduce(total)
        -    *totals, everything = total.tolist()
        +    sums_and_count = torch.tensor([*(float(sums[name]) for name in names), count], dtype=torch.float64)
        +    gathered = [torch.empty_like(sums_and_count) for _ in range(dist.get_world_size())]
        +    dist.all_gather(gathered, sums_and_count)
        +    *totals, everything = torch.stack(gathered).numpy().sum(axis=0)
    """),
)
