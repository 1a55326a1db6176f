"""31.1: a batch of groups that teach, from all ranks."""

from ddp_course.grader.vocabulary import Mistake, check, driver_job, expect, plural, recognised, show

from .driver import teaching_groups

FUNCTION = "fill"
SCENARIOS = {  # the smallest number, the groups of a batch, the chance of each rank that a group teaches
    "ranks alike": (0, 10, (0.4, 0.4, 0.4)),
    "ranks unlike, numbers above 100 million": (100_000_000, 13, (0.7, 0.2, 0.4)),
    "the last rank finds hardly any": (3000, 6, (0.5, 0.05, 0.05)),
}
JOBS = [driver_job(world, FUNCTION, SCENARIOS) for world in (2, 3, 1)]


def right_answer(case):
    """The rounds that it takes, the numbers of the batch in order, and how many groups these rounds give."""
    start, wanted, chances = case.args[0]
    numbers, rounds = [], 0
    while len(numbers) < wanted:
        for rank in range(case.world):
            numbers += teaching_groups(start, rounds, chances, rank, case.world)
        rounds += 1
    return rounds, sorted(numbers)[:wanted], len(numbers)


@check("every rank draws each round once, up to the first that fills the batch, on 1, 2 and 3 ranks")
def the_ranks_stop_together(case, rank, result):
    rounds, batch, group_count = right_answer(case)
    expect(
        result["turns"] == list(range(rounds)),
        f"rank {rank} drew the rounds {result['turns']}; in the rounds up to {rounds - 1} all ranks find {group_count} "
        f"groups, and {len(batch)} are enough",
        "whose groups count in the decision to stop",
    )


@check("the ranks' groups are the first that teach, by number")
def the_batch_is_the_first_groups(case, rank, result):
    _, batch, group_count = right_answer(case)
    start, _, chances = case.args[0]
    drawn = {number for turn in result["turns"] for number in teaching_groups(start, turn, chances, rank, case.world)}
    right = [number for number in batch if number in drawn]
    returned = result["numbers"]
    beyond, left_out = (sorted(set(a).difference(b)) for a, b in ((returned, right), (right, returned)))
    expect(
        sorted(returned) == right,
        f"rank {rank} returned {plural(len(returned), 'group')}; of the first {len(batch)} it has {len(right)}"
        + (f", and not {show(beyond)}" if beyond else f", and leaves out {show(left_out)}" if left_out else ""),
        f"what happens to groups beyond the batch: {group_count} were found"
        if beyond
        else "which groups are left out: is the first or the last one of the batch included?",
    )


@check("all ranks divide by the groups of the whole batch")
def the_divisor_is_global(case, rank, result):
    _, batch, group_count = right_answer(case)
    mistakes = (
        Mistake("its own groups times N", len(result["numbers"]) * case.world, "whether ranks have as many groups"),
        Mistake("its own groups", len(result["numbers"]), "what DDP's mean over the ranks does to such a divisor"),
        Mistake("all that were found", group_count, "whether groups beyond the batch are learnt from"),
    )
    words, look_at = recognised(result["divisor"], mistakes, "from how many groups all ranks learn")
    expect(
        result["divisor"] == len(batch),
        f"rank {rank} divides by {result['divisor']}; the batch has {len(batch)} groups{words}",
        look_at,
    )
