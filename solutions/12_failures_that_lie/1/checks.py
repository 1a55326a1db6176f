"""12.1: a function that finds in the record of a run the first step with a fault, its kind, and the odd ranks."""

import hashlib

from ddp_course.grader.vocabulary import Wrong, check, expect, expect_keys, function_job

FUNCTION = "diagnose"
KINDS = ("samples", "random", "collectives", "gradient", "optimizer", "parameters")
PER_RANK = ("samples", "random")  # differ between the ranks of a sound run; the other kinds are equal
STEPS, BATCH = 6, 3  # steps of a run; samples that a rank reads in a step


def samples(step, rank, world=4):
    """The samples that `rank` reads in `step` of a sound run."""
    first = (step * world + rank) * BATCH
    return [7 * number % 997 for number in range(first, first + BATCH)]


def fingerprint(*content):
    return hashlib.sha256(repr(content).encode()).hexdigest()[:8]


def run(changes=(), world=4):
    """The report of a run, report[step][rank]: a sound one, with the changes (step, rank, what, entry)."""
    report = [[sound_record(step, rank, world) for rank in range(world)] for step in range(STEPS)]
    for step, rank, what, entry in changes:
        report[step][rank][what] = entry
    return report


def sound_record(step, rank, world):
    """The notes of `rank` in `step` of a sound run."""
    return {
        "samples": samples(step, rank, world),
        "random": fingerprint(step, rank),
        "collectives": [["all_reduce", [16, 8]], ["all_reduce", [16]]],
        **{what: fingerprint(what, step) for what in KINDS[3:]},
    }


def odd(what, ranks, first, last=STEPS - 1, distinct=False):
    """Changes: from step `first` to `last`, `ranks` have another fingerprint; distinct: each of them its own."""
    steps = range(first, last + 1)
    return [(step, rank, what, fingerprint(what, step, "odd", rank * distinct)) for step in steps for rank in ranks]


REORDERED = [["all_reduce", [16]], ["all_reduce", [16, 8]]]
SOUND = {
    "nothing is wrong": run(),
    "one rank, which reads a sample twice": run([(1, 0, "samples", [5, 5, 9])], world=1),
    "no step was made": [],
    "samples return in the next epoch": run(
        [(3, rank, "samples", samples(0, 2 - rank, world=3)) for rank in range(3)], world=3
    ),
    "a random state returns on another rank, steps later": run([(3, 2, "random", fingerprint(0, 0))], world=3),
}
FAULTY = {  # scenario: the right diagnosis (step, what, ranks), and the report
    "a flipped bit in a weight of rank 2": ((3, "parameters", [2]), run(odd("parameters", [2], 3))),
    "a flipped bit in the momentum of rank 3": (
        (2, "optimizer", [3]),
        run(odd("optimizer", [3], 2) + odd("parameters", [3], 3)),
    ),
    "rank 0 is the odd one": ((1, "parameters", [0]), run(odd("parameters", [0], 1))),
    "two of five, each in its own way": (
        (2, "optimizer", [1, 4]),
        run(odd("optimizer", [1, 4], 2, distinct=True), world=5),
    ),
    "two of five, alike": ((1, "gradient", [0, 3]), run(odd("gradient", [0, 3], 1), world=5)),
    "two of four against two": ((2, "parameters", []), run(odd("parameters", [1, 2], 2))),
    "two agree, and each of the two others differs": (
        (5, "parameters", []),
        run(odd("parameters", [1, 2], 5, distinct=True)),
    ),
    "no all-reduce took place": ((1, "gradient", []), run(odd("gradient", [0, 1, 2, 3], 1, distinct=True))),
    "different in one step, and then equal again": (
        (2, "parameters", [1]),
        run(odd("parameters", [1], 2, last=2), world=3),
    ),
    "rank 2 reads one sample of rank 0": (
        (1, "samples", [2]),
        run([(1, 2, "samples", samples(1, 0)[:1] + samples(1, 2)[1:])]),
    ),
    "rank 2 reads a sample of rank 0, and rank 3 another one of rank 2": (
        (1, "samples", [2, 3]),
        run([(1, 2, "samples", [samples(1, 0)[0], 1000, 1001]), (1, 3, "samples", [1001, 1002, 1003])]),
    ),
    "all read the same samples": (
        (0, "samples", [1, 2]),
        run([(step, rank, "samples", samples(step, 0, 3)) for step in range(STEPS) for rank in (1, 2)], world=3),
    ),
    "rank 3 reads what rank 1 reads, the other way round": (
        (2, "samples", [3]),
        run([(2, 3, "samples", samples(2, 1)[::-1])]),
    ),
    "all ranks have the same dropout masks": (
        (0, "random", [1, 2]),
        run([(step, rank, "random", fingerprint(step, 0)) for step in range(STEPS) for rank in (1, 2)], world=3),
    ),
    "rank 3 takes over the random state of rank 1": ((4, "random", [3]), run([(4, 3, "random", fingerprint(4, 1))])),
    "rank 1 reduces in another order": (
        (2, "collectives", [1]),
        run([(2, 1, "collectives", REORDERED), *odd("gradient", [1], 2)]),
    ),
    "rank 0 leaves out an all-reduce": ((3, "collectives", [0]), run([(3, 0, "collectives", REORDERED[:1])], world=3)),
    "rank 2 gathers instead": (
        (1, "collectives", [2]),
        run([(1, 2, "collectives", [["all_gather", [16, 8]], ["all_reduce", [16]]])], world=3),
    ),
    "one of two ranks reduces 17 numbers where 16 are right": (
        (1, "collectives", []),
        run([(1, 1, "collectives", [REORDERED[1], ["all_reduce", [17]]])], world=2),
    ),
    "the cause stands before the symptoms of the same step": (
        (2, "samples", [1]),
        run([(2, 1, "samples", samples(2, 0)), *odd("gradient", [1, 3], 2, last=2), *odd("parameters", [3], 2)]),
    ),
    "random states and weights in the same step": (
        (1, "random", [1]),
        run([(1, 1, "random", fingerprint(1, 0)), *odd("parameters", [2], 1)], world=3),
    ),
    "two faults, and the first in time counts": (
        (2, "parameters", [3]),
        run([(4, 2, "samples", samples(4, 0)), *odd("parameters", [3], 2)]),
    ),
}
REPORTS = SOUND | {scenario: report for scenario, (_, report) in FAULTY.items()}
JOBS = [function_job(1, FUNCTION, {scenario: (report,) for scenario, report in REPORTS.items()})]


@check(f"{len(SOUND)} sound runs are left alone", scenarios=SOUND, begin="{scenario}: ")
def a_sound_run_is_left_alone(case):
    look_at = {
        "samples return in the next epoch": "within one step, not in the whole run, no sample comes twice",
        "a random state returns on another rank, steps later": "random states are compared within a step",
    }.get(case.scenario, "samples and random states have to differ between the ranks, and nothing else")
    expect(case.results[0] is None, f"{FUNCTION} returned {case.results[0]!r}, not None", look_at)


@check("the step is the first one in which anything is wrong", scenarios=FAULTY, begin="{scenario}: ")
def the_first_step_is_named(case):
    [result], ((step, what, _), _) = case.results, FAULTY[case.scenario]
    expect(result is not None, f"{FUNCTION} returned None", missed(what))
    expect_keys(result, ("step", "what", "ranks"), FUNCTION)
    if result["step"] != step:
        look_at = "is anything wrong in that step?"
        if result["step"] > step:
            look_at = missed(what) if what in (*PER_RANK, "collectives") else "a later step shows what followed"
        raise Wrong(f"{FUNCTION} named step {result['step']!r}, not {step}", look_at)


@check(
    "what is wrong first within the step is named, and not what follows from it", scenarios=FAULTY, begin="{scenario}: "
)
def the_cause_is_named(case):
    ((_, what, _), _), named = FAULTY[case.scenario], case.results[0]["what"]
    look_at = "a step reads samples, draws random numbers, communicates, and changes the weights last: as in KINDS"
    if what == "collectives":
        look_at = f"{missed(what)}; and a step communicates before it changes the weights: KINDS has this order"
    expect(named == what, f"{FUNCTION} named {named!r}, not {what!r}", look_at)


@check(f"the ranks are right in {len(FAULTY)} runs, also without a majority", scenarios=FAULTY, begin="{scenario}: ")
def the_ranks_are_right(case):
    ((_, what, ranks), _), named = FAULTY[case.scenario], case.results[0]["ranks"]
    if what in PER_RANK:
        look_at = "each rank that has what a lower rank has is wrong, also if that one is wrong itself"
    elif not ranks:
        look_at = "more than half of the ranks have to agree before another one can be called wrong"
    else:
        look_at = "all ranks that do not hold what more than half of the ranks hold; rank 0 can be one of them"
    expect(named == ranks, f"{FUNCTION} named the ranks {named!r}, not {ranks}", look_at)


def missed(what):
    """Where to look if the answer has overlooked a difference in `what`."""
    return {
        "samples": "one sample that two ranks read in a step is enough, at any position",
        "random": "random states that are equal on two ranks",
        "collectives": "name, sizes and order of the collectives, also their number",
    }.get(what, f"{what}: equal on all ranks, in every step")
