"""12.2: a detector of replicas that have diverged, in any part of the state, by as little as one bit."""

from ddp_course.grader.vocabulary import (
    by_pattern,
    check,
    driver_job,
    expect,
    expect_few_operations,
    plural,
    total_bytes,
)

from .driver import BETAS, CHANGES, NORM, WEIGHT_OR_MOMENTUM

FUNCTION = "odd_ranks"
MAX_BYTES, MAX_COLLECTIVES = 256, 2
SOUND = ("all ranks hold the same", "before the first step", "SGD without momentum", NORM)
LOOK = {  # by a pattern in the name of the change
    "no tensor": "the optimizer's state, also what is no tensor in it",
    "is a tensor": "the optimizer's settings: print() and repr() show four digits of a tensor",
    "running_mean": "buffers: which module they belong to, and not their names",
    "buffer": "buffers, also those that are not in the state_dict",
    "large integer": "bits: a conversion to float64 rounds integers above 2**53",
    "zero": "bits: 0.0 and -0.0 are equal as numbers",
    "NaN": "bits: each number at its place",
    "momentum": "the optimizer's state",
    "second moment": "the optimizer's state",
    "step count": "the optimizer's state",
    "learning rate": "the optimizer's settings, in every param_group",
    "betas": "the optimizer's settings: all of them, also a tuple, not the learning rate alone",
    "frozen": "all parameters, also frozen ones",
    "places": "the order: which number stands where",
    "sum": "a sum hides what cancels",
    "": "every bit of every parameter",
}
CHANGED = [what for what in CHANGES if what not in (BETAS, WEIGHT_OR_MOMENTUM)]  # those two on 3 ranks


def scenario(what, ranks):
    """The name of the call in which `ranks` make the change `what`."""
    return f"{what}, on rank{'s' * (len(ranks) > 1)} {' and '.join(map(str, ranks))}" if ranks else what


# (what is changed, the ranks that change it, the right result of odd_ranks), on 4, 3 and 2 ranks.
ON_4 = [(what, [(3 * number + 1) % 4], [(3 * number + 1) % 4]) for number, what in enumerate(CHANGED)]
ON_4 += [("the last bit of one weight", [0, 3], [0, 1, 2, 3])]
ON_3 = [
    ("the last bit of one weight", [0], [0]),
    ("the last bit of the momentum", [2], [2]),
    ("a buffer that is called running_mean", [0, 1], [2]),
    (BETAS, [1], [1]),
    (WEIGHT_OR_MOMENTUM, [1, 2], [0, 1, 2]),
]
ON_2 = [("the last bit of one weight", [1], [0, 1])]
EQUAL = [(what, [], []) for what in SOUND]
CASES = {  # of each number of ranks, by scenario
    world: {scenario(what, changed): (what, changed, odd) for what, changed, odd in EQUAL + rows}
    for world, rows in ((4, ON_4), (3, ON_3), (2, ON_2), (1, []))
}
CALLS = {world: {name: row[:2] for name, row in rows.items()} for world, rows in CASES.items()}
JOBS = [driver_job(world, FUNCTION, calls, seconds=24.0, loads=("torch._dynamo",)) for world, calls in CALLS.items()]


@check("no alarm where all ranks hold the same, also with a NaN, or a BatchNorm", scenarios=SOUND)
def equal_replicas_pass(case, rank, result):
    look_at = "what you compare besides the state, NaN != NaN, or a hash that differs from process to process"
    if case.scenario == NORM:
        look_at = "the buffers of BatchNorm: between two steps each rank has its own"
    expect(result["returned"] == [], f"{FUNCTION} returned {result['returned']!r} on rank {rank}, not []", look_at)


@check(f"{len(CHANGED)} kinds of difference are seen, each on one rank")
def every_difference_is_found(case):
    what, _, odd = CASES[case.world][case.scenario]
    look_at = by_pattern(LOOK)(what)
    expect(not odd or case.results[0]["returned"] != [], f"{FUNCTION} returned [] on rank 0", look_at)


@check("every rank names the odd ranks, on 1 to 4 ranks")
def the_odd_ranks_are_named(case, rank, result):
    _, _, odd = CASES[case.world][case.scenario]
    look_at = "rank 0 may be the odd one: more than half of the ranks decide; without such a majority, all"
    if result["returned"] != case.results[0]["returned"]:
        look_at = "every rank has to return the same: its log may be the only one that is left"
    expect(result["returned"] == odd, f"{FUNCTION} returned {result['returned']!r} on rank {rank}, not {odd}", look_at)


def most_sent(sent_by_case):
    """The sentence of little_is_sent, from the (collectives, bytes) of each case."""
    collectives, sent = map(max, zip(*sent_by_case, strict=True))
    return f"{plural(collectives, 'collective')}, at most {sent} bytes"


@check(most_sent)
def little_is_sent(case):
    look_at = "a fingerprint has a fixed size, however large the model is"
    collectives = expect_few_operations(case, MAX_COLLECTIVES, MAX_BYTES, look_at)
    return collectives, max(map(total_bytes, case.operations))


@check("the state of the run is as before")
def nothing_is_touched(case, rank, result):
    expect(
        not result["touched"],
        lambda: f"on rank {rank} {FUNCTION} changed {result['touched'][0]}",
        "a run that is checked has to continue as one that is not",
    )
