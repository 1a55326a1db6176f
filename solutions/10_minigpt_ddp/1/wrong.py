"""Wrong and right answers to question 10.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "compares_with_rank_0", "each rank compares its own list with that of rank 0",
        check="the_detector_names_the_step", says="while rank", on="whoever_is_first", edit="""
        -    dist.all_reduce(seconds, dist.ReduceOp.MAX)
        +    dist.broadcast(seconds, src=0)
        @@
        -    gathered = [None] * dist.get_world_size()
        -    dist.all_gather_object(gathered, rates)
        -    for step in range(max(map(len, gathered))):
        -        if len({own[step] if step < len(own) else None for own in gathered}) > 1:
        +    box = [rates]
        +    dist.broadcast_object_list(box, src=0)
        +    for step in range(max(len(rates), len(box[0]))):
        +        if rates[step : step + 1] != box[0][step : step + 1]:
    """),
    WrongAnswer(
        "forgets_the_limit", "does not divide by the limit",
        check="the_learning_rate_is_one", says="a limit of 40 seconds", edit="""
        -        rates.append(0.1 * (1 - seconds.item() / limit))
        +        rates.append(0.1 * (1 - seconds.item()))
    """),
    WrongAnswer(
        "gathers_tensors", "gathers lists of different lengths as tensors",
        state="crashed", check="dies", says="was killed by SIGABRT", on="whoever_is_first", edit="""
        -    dist.all_reduce(seconds, dist.ReduceOp.MAX)
        +    dist.broadcast(seconds, src=0)
        @@
        -    gathered = [None] * dist.get_world_size()
        -    dist.all_gather_object(gathered, rates)
        -    for step in range(max(map(len, gathered))):
        -        if len({own[step] if step < len(own) else None for own in gathered}) > 1:
        +    own = torch.tensor(rates, dtype=torch.float64)
        +    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        +    dist.all_gather(gathered, own)
        +    for step in range(len(own)):
        +        if len({other[step].item() for other in gathered}) > 1:
    """),
    WrongAnswer(
        "one_step_too_many", "looks at the broadcast clock after the step instead of before it",
        check="the_ranks_stop_after_the_same_step", says="rank 0 made 1 steps", on="whoever_is_first", edit="""
        -    dist.all_reduce(seconds, dist.ReduceOp.MAX)
        +    dist.broadcast(seconds, src=0)
        @@
        -    while (seconds := seconds_of_rank_0(clock)) < limit:
        +    seconds = seconds_of_rank_0(clock)
        +    while True:
        @@
                 weights -= rates[-1] * gradient / dist.get_world_size()
        +        seconds = seconds_of_rank_0(clock)
        +        if seconds >= limit:
        +            break
    """),
    WrongAnswer(
        "own_gradients", "repairs the clock and loses the all-reduce",
        check="the_replicas_are_one_process", says="ended with weights", on="whoever_is_first", edit="""
        -    dist.all_reduce(seconds, dist.ReduceOp.MAX)
        +    dist.broadcast(seconds, src=0)
        @@
        -        dist.all_reduce(gradient)
        -        weights -= rates[-1] * gradient / dist.get_world_size()
        +        weights -= rates[-1] * gradient
    """),
    WrongAnswer(
        "pads_with_zero", "fills short lists up with zeros",
        check="the_detector_names_the_step",
        says="with the learning rate 0): first_difference returned None", edit="""
        -    gathered = [None] * dist.get_world_size()
        -    dist.all_gather_object(gathered, rates)  # lists of any lengths
        -    for step in range(max(map(len, gathered))):
        -        if len({own[step] if step < len(own) else None for own in gathered}) > 1:
        -            return step
        -    return None
        +    longest = torch.tensor(len(rates))
        +    dist.all_reduce(longest, dist.ReduceOp.MAX)
        +    own = torch.zeros(int(longest), dtype=torch.float64)
        +    own[: len(rates)] = torch.tensor(rates, dtype=torch.float64)
        +    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        +    dist.all_gather(gathered, own)
        +    differ = (torch.stack(gathered) != gathered[0]).any(0).nonzero().flatten().tolist()
        +    return differ[0] if differ else None
    """),
    WrongAnswer(
        "sum_of_gradients", "forgets to divide the gradient when it rewrites the step",
        check="the_replicas_are_one_process", says="one process with all samples", on="whoever_is_first", edit="""
        -    dist.all_reduce(seconds, dist.ReduceOp.MAX)
        +    dist.broadcast(seconds, src=0)
        @@
        -        weights -= rates[-1] * gradient / dist.get_world_size()
        +        weights -= rates[-1] * gradient
    """),
    WrongAnswer(
        "tells_only_the_end", "rank 0 broadcasts that the time is over, and no other rank takes part",
        check="does not end", says="rank 0 was in broadcast", on="unrepaired", edit="""
        -    while (seconds := clock()) < limit:
        +    over = torch.zeros(1)
        +    while not over:
        +        seconds = clock()
        +        if dist.get_rank() == 0 and seconds >= limit:
        +            over += 1
        +            dist.broadcast(over, src=0)
        +            break
    """),
    WrongAnswer(
        "unrepaired", "leaves the script as it is",
        check="does not end", says="rank 0 was in barrier", on="whoever_is_first", edit="""
        -def seconds_of_rank_0(clock):
        -    seconds = torch.tensor([clock()], dtype=torch.float64)
        -    dist.all_reduce(seconds, dist.ReduceOp.MAX)
        -    return seconds.item()
        @@
        -    while (seconds := seconds_of_rank_0(clock)) < limit:
        +    while (seconds := clock()) < limit:
    """),
    WrongAnswer(
        "whoever_is_first", "all ranks stop when the first clock reaches the limit",
        check="the_ranks_stop_after_the_same_step", says="rank 0's clock allows", text="""
        import torch
        import torch.distributed as dist


        def seconds_of_rank_0(clock):
            seconds = torch.tensor([clock()], dtype=torch.float64)
            dist.all_reduce(seconds, dist.ReduceOp.MAX)
            return seconds.item()


        def train(clock, gradient_of, limit):
            weights, rates = torch.zeros(3, dtype=torch.float64), []
            while (seconds := seconds_of_rank_0(clock)) < limit:
                rates.append(0.1 * (1 - seconds / limit))
                gradient = gradient_of(weights)
                dist.all_reduce(gradient)
                weights -= rates[-1] * gradient / dist.get_world_size()
            dist.barrier()
            return rates, weights


        def first_difference(rates):
            gathered = [None] * dist.get_world_size()
            dist.all_gather_object(gathered, rates)
            for step in range(max(map(len, gathered))):
                if len({own[step] if step < len(own) else None for own in gathered}) > 1:
                    return step
            return None
    """),
    WrongAnswer(
        "whole_microseconds", "broadcasts whole microseconds",
        check="the_learning_rate_is_one", says="clocks with many digits", edit="""
        -        seconds = torch.tensor(clock(), dtype=torch.float64)
        +        seconds = torch.tensor(round(clock() * 1e6), dtype=torch.int64)
                 dist.broadcast(seconds, src=0)  # from here on all ranks use rank 0's clock
        +        seconds = seconds.double() / 1e6
    """),
    RightAnswer(
        "gathers_all_clocks",
        "all clocks are gathered and the first is taken; the detector pads with NaN and compares bits",
        text="""
        import torch
        import torch.distributed as dist


        def train(clock, gradient_of, limit):
            world = dist.get_world_size()
            weights, rates = torch.zeros(3, dtype=torch.float64), []
            while True:
                clocks = [torch.zeros(1, dtype=torch.float64) for _ in range(world)]
                dist.all_gather(clocks, torch.tensor([clock()], dtype=torch.float64))
                seconds = float(clocks[0])
                if not seconds < limit:
                    return rates, weights
                rate = 0.1 * (1 - seconds / limit)
                gradient = gradient_of(weights) / world
                dist.all_reduce(gradient)
                weights = weights - rate * gradient
                rates.append(rate)


        def first_difference(rates):
            longest = torch.tensor([len(rates)])
            dist.all_reduce(longest, dist.ReduceOp.MAX)
            own = torch.full((int(longest) + 1,), float("inf"), dtype=torch.float64)
            own[: len(rates)] = torch.tensor(rates, dtype=torch.float64)
            least, most = own.clone(), own.clone()
            dist.all_reduce(least, dist.ReduceOp.MIN)
            dist.all_reduce(most, dist.ReduceOp.MAX)
            apart = (least != most).nonzero()
            return int(apart[0]) if len(apart) else None
    """),
    RightAnswer(
        "objects",
        "rank 0 broadcasts a decision and a learning rate as an object; the detector lets rank 0 find the step",
        text="""
        import torch
        import torch.distributed as dist


        def train(clock, gradient_of, limit):
            weights, rates = torch.zeros(3, dtype=torch.float64), []
            while True:
                seconds = clock()
                box = [0.1 * (1 - seconds / limit) if seconds < limit else None]
                dist.broadcast_object_list(box, src=0)
                if box[0] is None:
                    break
                rates += box
                gradient = gradient_of(weights)
                dist.all_reduce(gradient)
                weights -= box[0] * gradient / dist.get_world_size()
            return rates, weights


        def first_difference(rates):
            world = dist.get_world_size()
            lists = [None] * world if dist.get_rank() == 0 else None
            dist.gather_object(rates, lists, dst=0)
            box = [None]
            if dist.get_rank() == 0:
                for step in range(max(map(len, lists))):
                    if any(other[step : step + 1] != lists[0][step : step + 1] for other in lists):
                        box = [step]
                        break
            dist.broadcast_object_list(box, src=0)
            return box[0]
    """),
)
