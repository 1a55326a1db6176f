"""Wrong and right answers to question 31.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import GIVEN, RightAnswer, WrongAnswer

STOP, BATCH, DIVISOR = "the_ranks_stop_together", "the_batch_is_the_first_groups", "the_divisor_is_global"

ANSWERS = (
    WrongAnswer(
        "own_share", "each rank samples until it has its share; nothing is sent",
        check=STOP, says="rank 0 drew the rounds [0]; in the rounds up to 1", look="whose groups", on=GIVEN, edit='''
        -    """The numbers of this rank's groups of a batch, and what all ranks divide their sums by."""
    '''),
    WrongAnswer(
        "one_more", "continues where the groups are exactly enough",
        check=STOP, says="all ranks find 10 groups, and 10 are enough", edit="""
        -        if len(numbers) >= wanted:
        +        if len(numbers) > wanted:
    """),
    WrongAnswer(
        "keeps_all", "learns from all that were found",
        check=BATCH, says="rank 0 returned 10 groups; of the first 13 it has 8, and not [", look="beyond the batch", edit="""
        -            batch = sorted(numbers)[:wanted]
        +            batch = sorted(numbers)
    """),
    WrongAnswer(
        "first_of_rank_0", "cuts in the order of the ranks",
        check=BATCH, says="of the first 13 it has", look="beyond the batch", edit="""
        -            batch = sorted(numbers)[:wanted]
        +            batch = numbers[:wanted]
    """),
    WrongAnswer(
        "own_times_n", "takes its own groups times N for those of all ranks",
        check=DIVISOR, says="its own groups times N", look="as many groups", edit="""
        -            return [number for number in own if number in batch], len(batch)
        +            kept = [number for number in own if number in batch]
        +            return kept, len(kept) * dist.get_world_size()
    """),
    WrongAnswer(
        "all_found", "divides by all that were found",
        check=DIVISOR, says="all that were found", look="learnt from", edit="""
        -            return [number for number in own if number in batch], len(batch)
        +            return [number for number in own if number in batch], len(numbers)
    """),
    RightAnswer(
        "counts_first", "adds up counts in each round, and gathers the numbers once, at the end", text='''
        import torch
        import torch.distributed as dist


        def fill(draw, wanted):
            own, turn = [], 0
            while True:
                own += draw(turn)
                turn += 1
                count = torch.tensor(len(own))
                dist.all_reduce(count)
                if count >= wanted:
                    break
            every = [None] * dist.get_world_size()
            dist.all_gather_object(every, own)
            last = sorted(number for numbers in every for number in numbers)[wanted - 1]
            return [number for number in own if number <= last], wanted
    '''),
)
