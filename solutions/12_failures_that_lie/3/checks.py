"""12.3: draws by weight, of which every rank makes all, and the same: the repair is one draw, and a share for each."""

import math

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong

FUNCTION = "indices"
WEIGHTS = [1.0, 0.0, 3.0, 6.0, 0.0, 10.0]  # their sum is 20
MANY, AGAIN, FIRST, FEW = "4,000 draws", "epoch 0 again", "40 draws", "equal weights"
NEXT, OTHER_SEED = "the next epoch", "another seed"
CALLS = {  # weights, draws, seed, epoch
    FIRST: (WEIGHTS, 40, 3, 0),
    NEXT: (WEIGHTS, 40, 3, 1),
    OTHER_SEED: (WEIGHTS, 40, 1011, 0),
    AGAIN: (WEIGHTS, 40, 3, 0),
    "41 draws": (WEIGHTS, 41, 3, 0),
    "3 draws": (WEIGHTS, 3, 3, 5),
    FEW: ([0.5] * 50, 47, 8, 2),
    MANY: (WEIGHTS, 4000, 9, 1),
}
JOBS = [
    Job(world, FUNCTION, tuple(Call([call] * world, given) for given, call in CALLS.items()), driver=True)
    for world in (1, 2, 3, 4)
]


def each_draw_is_made_once(records):
    """The ranks' numbers of draws add up to `draws`: rank r has those at the places r, r + world, ..."""
    for case in cases(records):
        _, draws, *_ = case.args[0]
        right = [len(range(rank, draws, case.world)) for rank in range(case.world)]
        found = [len(result["drawn"]) for result in case.results]
        if found != right:
            look = "how many places are there for this rank if the draws do not divide by the ranks?"
            raise Wrong(f"{case.where}the ranks drew {found} samples, not {right}", look)
    return "no draw is added or left out, also where they do not divide by the ranks"


def the_weights_count(records):
    """A sample is drawn as often as its weight says, and never if that is 0; a sample may come more than once."""
    for case in cases(records):
        weights, draws, *_ = case.args[0]
        drawn = together(case)
        if unknown := set(drawn) - set(range(len(weights))):
            raise Wrong(f"{case.where}{unknown.pop()!r} was drawn; there are {len(weights)} samples", "an index it is")
        if never := [one for one in drawn if weights[one] == 0]:
            raise Wrong(f"{case.where}sample {never[0]}, of weight 0, was drawn", "what the weights are used for")
        if case.given == FEW and len(set(drawn)) == draws:
            raise Wrong(
                f"{case.where}no sample of {len(weights)} was drawn twice in {draws} draws",
                "with replacement, also where there are more samples than draws",
            )
        for sample, weight in enumerate(weights) if case.given == MANY else ():
            share = weight / sum(weights)
            expected, spread = draws * share, math.sqrt(draws * share * (1 - share))
            if abs(drawn.count(sample) - expected) > 5 * spread:
                raise Wrong(
                    f"{case.where}sample {sample}, of weight {weight:g} of {sum(weights):g}, was drawn "
                    f"{drawn.count(sample)} times; about {expected:g} are right",
                    "the weights of all samples, with replacement, on every rank",
                )
    return "all ranks together draw by weight"


def the_draws_are_those_of_one_process(records):
    """The draws of all ranks, place by place, are those of one process with the same arguments."""
    alone = {case.given: case.results[0]["drawn"] for case in cases(records) if case.world == 1}
    for case in cases(records):
        right, found = alone[case.given], together(case)
        if found == right:
            continue
        shares = [result["drawn"] for result in case.results]
        if case.world > 1 and shares[0] and shares[1] == shares[0]:
            raise Wrong(
                f"{case.where}rank 1 drew what rank 0 drew, {shares[0][:6]} ...: the global batch holds each sample "
                f"{case.world} times",
                "what is the same on all ranks there, and what has to depend on the rank?",
            )
        if sorted(found) == sorted(right):
            look = "place i belongs to rank i % world; then a global batch is the same at any number of ranks"
            raise Wrong(f"{case.where}the draws are those of one process, in another order", look)
        raise Wrong(
            f"{case.where}together the ranks drew {found[:6]} ...; one process draws {right[:6]} ...",
            "one draw for all ranks, of which each takes its share",
        )
    return "1, 2, 3 and 4 ranks see the same global batches"


def seed_and_epoch_decide(records):
    """Another epoch or seed gives other draws, and the same ones give the same draws again."""
    for record in records:
        drawn = {case.given: together(case) for case in cases([record])}
        world = record.job.world
        begin = f"with {world} rank{'s' * (world > 1)}: "
        if drawn[NEXT] == drawn[FIRST]:
            raise Wrong(f"{begin}epochs 0 and 1 have the same draws, {drawn[FIRST][:6]} ...", "what the epoch changes")
        if drawn[OTHER_SEED] == drawn[FIRST]:
            raise Wrong(f"{begin}seeds 3 and 1011 have the same draws, {drawn[FIRST][:6]} ...", "what the seed changes")
        if drawn[AGAIN] != drawn[FIRST]:
            look = "a run that resumes has to draw an epoch again: the draws depend on nothing that went before"
            raise Wrong(f"{begin}the second call for epoch 0 drew {drawn[AGAIN][:6]}, not {drawn[FIRST][:6]} ...", look)
    return "other draws in each epoch and for each seed, and the same ones again after a resume"


def the_random_states_stay(records):
    """The random states of torch and Python are as before: dropout draws from them, on each rank for itself."""
    for case in cases(records):
        for rank, result in enumerate(case.results):
            for untouched, whose in zip(result["untouched"], ("torch", "Python"), strict=True):
                if not untouched:
                    look = "a torch.Generator of its own; torch.manual_seed would make all dropout masks equal"
                    raise Wrong(f"{case.where}{FUNCTION} changed the random state of {whose} on rank {rank}", look)
    return "it leaves the random states alone"


CHECKS = [
    each_draw_is_made_once,
    the_weights_count,
    the_draws_are_those_of_one_process,
    seed_and_epoch_decide,
    the_random_states_stay,
]


def together(case):
    """The draws of all ranks, place by place."""
    shares = [result["drawn"] for result in case.results]
    return [share[place] for place in range(max(map(len, shares))) for share in shares if place < len(share)]
