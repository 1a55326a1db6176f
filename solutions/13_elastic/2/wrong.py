"""Wrong and right answers to question 13.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "the_smallest_of_the_newest", "takes the smallest of the ranks' newest steps, which another rank may lack",
        check="all_ranks_resume_from_one_step",
        says="torn, each at another step): rank 0 resumed from step 9, rank 1 from step 0",
        look="the newest step of which all ranks have an intact checkpoint", edit="""
        -    everyones = [None] * dist.get_world_size()
        -    dist.all_gather_object(everyones, list(own))
        -    common = set(own).intersection(*everyones)
        -    return own[max(common)] if common else None
        +    newest = torch.tensor(max(own, default=0))
        +    dist.all_reduce(newest, op=dist.ReduceOp.MIN)
        +    return own.get(newest.item())
    """),
    WrongAnswer(
        "torn_or_not", "takes every file of that name for a checkpoint",
        check="raises", state="crashed", says="rank 1 raised TypeError", edit="""
        -        if (state := load(path)) is not None:
        -            own[state["step"]] = state
        +        own[int(path.stem.removeprefix("step_"))] = load(path)
        @@
        -    return own[max(common)] if common else None
        +    return dict(own[max(common)]) if common else None
    """),
    WrongAnswer(
        "upwards_to_the_first_gap", "climbs from the oldest, and stops where one is torn",
        check="all_ranks_resume_from_one_step", says="torn, each at another step): rank 0 made the steps 0 to 13", edit="""
        -    return own[max(common)] if common else None
        +    step = 0
        +    while step + EVERY in common:
        +        step += EVERY
        +    return own.get(step)
    """),
    WrongAnswer(
        "the_schedule_starts_over", "leaves the learning rate of the given script, which counts the steps of an attempt",
        check="the_run_is_the_one_that_never_stopped", says="(stopped after step 7): rank 0 ended with the weights",
        look="the number of the step", edit="""
        -        weights = weights - 0.1 * (1 - step / steps) * momentum
        +        weights = weights - 0.1 * (1 - (step - first) / steps) * momentum
    """),
    WrongAnswer(
        "without_the_rest", "sets each rank's rest of the compression to zero",
        check="the_run_is_the_one_that_never_stopped", says="(stopped after step 7)", look="the rest of this rank", edit="""
             first, weights, momentum, rest = (state[name] for name in ("step", "weights", "momentum", "rest"))
        +    rest = zeros
    """),
    WrongAnswer(
        "a_constant_rate", "makes the learning rate the same in all steps, and so in all attempts",
        check="the_training_is_the_given_one", says="(never stopped): the weights are", look="stay as they are", edit="""
        -        weights = weights - 0.1 * (1 - step / steps) * momentum
        +        weights = weights - 0.1 * momentum
    """),
    WrongAnswer(
        "sends_it_uncompressed", "sends the gradient uncompressed, which leaves no rest",
        check="the_training_is_the_given_one", says="(never stopped): the weights are", edit="""
        -        total = (8 * exact).round() / 8  # what is sent is compressed; the rest is this rank's own, for the next step
        +        total = exact.clone()
    """),
    RightAnswer(
        "downwards_together", "the ranks go down from the largest step until all of them have one", edit="""
        -    own = {}
        -    for path in Path(folder).glob("step_*.pt"):
        -        if (state := load(path)) is not None:
        -            own[state["step"]] = state
        -    everyones = [None] * dist.get_world_size()
        -    dist.all_gather_object(everyones, list(own))
        -    common = set(own).intersection(*everyones)
        -    return own[max(common)] if common else None
        +    names = [int(path.stem[5:]) for path in Path(folder).glob("step_*.pt")]
        +    candidate = torch.tensor(max(names, default=0))
        +    while True:
        +        dist.all_reduce(candidate, op=dist.ReduceOp.MIN)
        +        if candidate == 0:
        +            return None
        +        state = load(path_of(folder, candidate.item()))
        +        whole = torch.tensor(int(state is not None))
        +        dist.all_reduce(whole, op=dist.ReduceOp.MIN)
        +        if whole:
        +            return state
        +        candidate = torch.tensor(max((name for name in names if name < candidate), default=0))
    """),
    RightAnswer(
        "rank_0_decides", "rank 0 gathers the lists and broadcasts the step", edit="""
        -    dist.all_gather_object(everyones, list(own))
        -    common = set(own).intersection(*everyones)
        -    return own[max(common)] if common else None
        +    dist.gather_object(set(own), everyones if dist.get_rank() == 0 else None)
        +    decision = [max(set.intersection(*everyones), default=None) if dist.get_rank() == 0 else None]
        +    dist.broadcast_object_list(decision, src=0)
        +    return own.get(decision[0])
    """),
)
