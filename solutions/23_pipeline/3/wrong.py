"""Wrong and right answers to question 23.3; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "neighbouring_stages", "gives a rank stages that follow each other: then nothing is gained by having two",
        check="each_piece_of_work_once", says="rank 0 has ('forward', 1, 0) once in its list, and not 0",
        look="round the ranks in a loop", edit="""
        -    stages = range(rank, ranks * per_rank, ranks)
        +    stages = range(rank * per_rank, (rank + 1) * per_rank)
    """),
    WrongAnswer(
        "a_dictionary", "describes each piece of work in words of its own",
        check="each_piece_of_work_once", says="order returned", look="a list of", edit="""
        -    return forwards[:ahead] + [item for pair in pairs for item in pair] + backwards[total - ahead :]
        +    items = forwards[:ahead] + [item for pair in pairs for item in pair] + backwards[total - ahead :]
        +    return [{"kind": kind, "stage": stage, "micro_batch": number} for kind, stage, number in items]
    """),
    WrongAnswer(
        "backwards_in_the_order_of_the_forwards", "begins its backwards with the rank's first stage",
        check="no_rank_waits_forever", says="waits forever with the backward of stage 0", look="its own forward", edit="""
        -    forwards, backwards = work("forward", stages), work("backward", stages[::-1])
        +    forwards, backwards = work("forward", stages), work("backward", stages)
    """),
    WrongAnswer(
        "ahead_as_with_one_stage", "runs as many forwards ahead as 1F1B does with one stage per rank",
        check="no_rank_waits_forever", says="waits forever", look="what has to come before it", edit="""
        -    ahead = (per_rank - 1) * ranks + ranks - 1 - rank
        +    ahead = ranks - 1 - rank
    """),
    WrongAnswer(
        "all_of_a_stage_first", "finishes a stage with all micro-batches before the next one: LoopedBFS, then 1F1B's pairs",
        check="little_is_held", says="activations at once", look="how many forwards come before", edit="""
        -        turns = range(0, micro_batches, ranks)
        -        return [(kind, stage, turn + offset) for turn in turns for stage in stages for offset in range(ranks)]
        +        return [(kind, stage, number) for stage in stages for number in range(micro_batches)]
        @@
        -    ahead = (per_rank - 1) * ranks + ranks - 1 - rank
        +    ahead = (per_rank - 1) * micro_batches + ranks - 1 - rank
    """),
    WrongAnswer(
        "all_forwards_first", "runs all forwards, then all backwards",
        check="little_is_held", says="(ranks 2, per_rank 2, micro_batches 4): rank 0 holds 8 activations at once, more than 4",
        look="until one can come", edit="""
        -    ahead = (per_rank - 1) * ranks + ranks - 1 - rank
        +    ahead = total
    """),
    WrongAnswer(
        "one_turn_at_a_time", "finishes p micro-batches, forwards and backwards, before it begins with the next p",
        check="the_bubble_is_that_of_the_formula", says="(ranks 2, per_rank 2, micro_batches 4): with forwards that take 1",
        look="where a rank waits", edit="""
        -    ahead = (per_rank - 1) * ranks + ranks - 1 - rank
        -    pairs = zip(forwards[ahead:], backwards, strict=False)
        -    return forwards[:ahead] + [item for pair in pairs for item in pair] + backwards[total - ahead :]
        +    size = per_rank * ranks
        +    starts = range(0, total, size)
        +    return [item for start in starts for half in (forwards, backwards) for item in half[start : start + size]]
    """),
    WrongAnswer(
        "the_ranks_behind_forgotten", "begins with backwards on every rank when its last stage has a micro-batch",
        check="the_bubble_is_that_of_the_formula", says="are possible", edit="""
        -    ahead = (per_rank - 1) * ranks + ranks - 1 - rank
        +    ahead = (per_rank - 1) * ranks
    """),
    RightAnswer(
        "a_timetable", "gives every piece of work of the rank a time, in pairs of a forward and a backward, and sorts by it",
        text='''
        def order(rank, ranks, per_rank, micro_batches):
            def slot(piece):
                kind, stage, number = piece
                turn, offset = divmod(number, ranks)
                chunk = stage // ranks if kind == "forward" else per_rank - 1 - stage // ranks
                time = (turn * per_rank + chunk) * ranks + offset
                if kind == "forward":
                    return time + rank, 0
                return time + per_rank * ranks - 1, 1

            stages = range(rank, ranks * per_rank, ranks)
            pieces = [(kind, stage, number) for kind in ("forward", "backward") for stage in stages
                      for number in range(micro_batches)]
            return sorted(pieces, key=slot)
    '''),
)
