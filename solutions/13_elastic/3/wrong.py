"""Wrong and right answers to question 13.3; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "a_barrier_before", "lets the rank that was asked wait for the others before it saves",
        check="does not end", says="no end, and nothing moves", on="given", edit="""
                 if asked:
        +            dist.barrier()
    """),
    WrongAnswer(
        "the_handler_writes_the_flag", "lets the handler write to the tensor that the ranks have just reduced",
        check="does not end", says="asked right after its sixth all-reduce", edit="""
        -    asked, weights = [], torch.zeros(3, dtype=torch.float64)
        -    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
        +    anybody, weights = torch.zeros(1), torch.zeros(3, dtype=torch.float64)
        +    signal.signal(signal.SIGTERM, lambda number, frame: anybody.fill_(1))
        @@
        -        anybody = torch.tensor(len(asked))
    """),
    WrongAnswer(
        "rank_0_is_asked", "broadcasts whether rank 0 was asked",
        check="all_stop_after_the_same_step", says="(rank 1 is asked in step 3): rank 0 made 8 steps, not 4",
        look="whether any of them was asked", edit="""
        -        dist.all_reduce(anybody, op=dist.ReduceOp.MAX)
        +        dist.broadcast(anybody, src=0)
    """),
    WrongAnswer(
        "looks_too_early", "looks whether it was asked before the ranks reduce the gradient, and shares that after it",
        check="all_stop_after_the_same_step", says="its fifth all-reduce): rank 0 made 4 steps, not 3",
        look="at the end of a step", edit="""
        -        dist.all_reduce(total)
        +        anybody = torch.tensor(len(asked))
        +        dist.all_reduce(total)
        @@
        -        anybody = torch.tensor(len(asked))
        -        dist.all_reduce(anybody, op=dist.ReduceOp.MAX)
        +        dist.all_reduce(anybody, op=dist.ReduceOp.MAX)
    """),
    WrongAnswer(
        "the_one_that_was_asked_saves", "lets the rank save that was asked",
        check="rank_0_saves_once", says="rank 0 saved 0 times", edit="""
        -    if dist.get_rank() == 0:
        +    if asked:
    """),
    WrongAnswer(
        "the_number_of_the_step", "saves the number of the last step instead of how many were made",
        check="rank_0_saves_once", says="the checkpoint says 7 steps; 8 were made", look="step + 1", edit="""
        -        save(step + 1, weights)
        +        save(step, weights)
    """),
    WrongAnswer(
        "without_a_barrier", "lets the others leave while rank 0 saves",
        check="no_rank_returns_before_the_save", says="before the checkpoint was written", look="have to wait", edit="""
        -    dist.barrier()  # no rank leaves before the checkpoint is written
    """),
    WrongAnswer(
        "a_barrier_too_early", "has a barrier before the save, and none after it",
        check="no_rank_returns_before_the_save", says="before the checkpoint was written", edit="""
        -    if dist.get_rank() == 0:
        -        save(step + 1, weights)
        -    dist.barrier()  # no rank leaves before the checkpoint is written
        +    dist.barrier()
        +    if dist.get_rank() == 0:
        +        save(step + 1, weights)
    """),
    WrongAnswer(
        "own_exit_code", "each rank returns whether it was asked",
        check="the_exit_code_says_how_it_ended", says="rank 0 returned 0, not 75", look="on every rank", edit="""
        -    return 0 if step + 1 == steps else STOPPED
        +    return STOPPED if asked else 0
    """),
    WrongAnswer(
        "asked_in_the_last_step", "says that steps are missing if any rank had been asked in the last one",
        check="the_exit_code_says_how_it_ended", says="(rank 1 is asked in the last step): rank 0 returned 75, not 0",
        look="are steps missing", edit="""
        -    return 0 if step + 1 == steps else STOPPED
        +    return STOPPED if anybody else 0
    """),
    WrongAnswer(
        "the_default_again", "restores the default handler before it saves, so that the second signal kills the rank",
        check="dies", state="crashed", says="killed by SIGTERM", edit="""
             if dist.get_rank() == 0:
        +        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    """),
    WrongAnswer(
        "handler_back_on_the_others", "restores the old handler on the ranks that do not save, which still have to wait",
        check="dies", state="crashed", says="rank 1 was killed by SIGTERM", edit="""
        -    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
        +    before = signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
        @@
                 save(step + 1, weights)
        +    else:
        +        signal.signal(signal.SIGTERM, before)
    """),
    WrongAnswer(
        "leaves_in_the_handler", "ends the process in the handler",
        check="leaves early", state="crashed", says="left with exit code 75", edit="""
        -    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
        +    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(STOPPED))
    """),
    WrongAnswer(
        "gathers_objects_at_each_step", "gathers objects, several messages per step",
        check="little_is_sent", says="operations with", look="one number per step", edit="""
        -        anybody = torch.tensor(len(asked))
        -        dist.all_reduce(anybody, op=dist.ReduceOp.MAX)
        +        gathered = [None] * dist.get_world_size()
        +        dist.all_gather_object(gathered, {"rank": dist.get_rank(), "asked": bool(asked)})
        +        anybody = any(reply["asked"] for reply in gathered)
    """),
    WrongAnswer(
        "three_at_the_end", "has a barrier before and after the save, and broadcasts how many steps were made",
        check="little_is_sent", says="(no rank is asked): rank 0 started 19 operations", look="at the end", edit="""
        +    dist.barrier()
             if dist.get_rank() == 0:
                 save(step + 1, weights)
        +    dist.broadcast(torch.tensor(step + 1), src=0)
    """),
    RightAnswer(
        "two_at_the_end", "has a barrier before the save and one after it", edit="""
        +    dist.barrier()
             if dist.get_rank() == 0:
    """),
    RightAnswer(
        "with_the_gradient", "sends the request as a fourth number of the gradient", edit="""
        -        total = gradient(step)
        -        dist.all_reduce(total)
        -        weights -= 0.1 * total / dist.get_world_size()
        -        anybody = torch.tensor(len(asked))
        -        dist.all_reduce(anybody, op=dist.ReduceOp.MAX)
        -        if anybody:
        -            break
        +        gradients = gradient(step)
        +        total = torch.cat([gradients, torch.tensor([float(bool(asked))], dtype=torch.float64)])
        +        dist.all_reduce(total)
        +        weights -= 0.1 * total[:3] / dist.get_world_size()
        +        if total[3] > 0:
        +            break
    """),
    RightAnswer(
        "before_the_next_step", "counts steps in a while loop; rank 0 broadcasts a tensor when it has saved", edit="""
        -    for step in range(steps):
        +    step = -1
        +    while step + 1 < steps:
        +        step += 1
        @@
        -    dist.barrier()  # no rank leaves before the checkpoint is written
        +    signal.signal(signal.SIGTERM, signal.SIG_IGN)
        +    dist.broadcast(torch.zeros(1), src=0)
    """),
)
