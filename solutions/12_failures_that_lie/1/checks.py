"""12.1: a function that finds in the record of a run the first step with a fault, its kind, and the odd ranks."""

import hashlib
from typing import NamedTuple

from ddp_course.grader.vocabulary import Call, Job, Wrong, check, expect

FUNCTION = "diagnose"
KINDS = ("samples", "random", "collectives", "gradient", "optimizer", "parameters")
PER_RANK = ("samples", "random")  # differ between the ranks of a sound run; the other kinds are equal
BATCH = 3


def run(steps, ranks, *faults):
    """The report of a run, report[step][rank]: sound, then changed in place by each of `faults`."""
    report = [[_sound_record(step, rank, ranks) for rank in range(ranks)] for step in range(steps)]
    for fault in faults:
        fault(report)
    return report


def _sound_record(step, rank, ranks):
    first = (step * ranks + rank) * BATCH
    equal = {what: _fingerprint(what, step) for what in KINDS[3:]}
    return {
        "samples": [7 * number % 997 for number in range(first, first + BATCH)],
        "random": _fingerprint(step, rank),
        "collectives": [["all_reduce", [16, 8]], ["all_reduce", [16]]],
        **equal,
    }


def _fingerprint(*content):
    return hashlib.sha256(repr(content).encode()).hexdigest()[:8]


def odd(what, ranks, steps, distinct=False):
    """A fault: `ranks` have another fingerprint of `what` in `steps`; distinct: each of them a different one."""

    def fault(report):
        for step in steps:
            for rank in ranks:
                report[step][rank][what] = _fingerprint(what, step, "odd", rank if distinct else 0)

    return fault


def put(what, step, rank, entry):
    """A fault: `rank` has `entry` as its `what` in `step`."""

    def fault(report):
        report[step][rank][what] = entry

    return fault


def copied(what, step, rank, source, source_step=None, count=BATCH):
    """A fault: in `step`, `rank` has the `what` of rank `source` in the same step, or in `source_step`.

    Of samples only the first `count` are copied.
    """

    def fault(report):
        entry = report[step if source_step is None else source_step][source][what]
        report[step][rank][what] = entry[:count] + report[step][rank][what][count:] if what == "samples" else entry

    return fault


class FaultyRun(NamedTuple):
    """The report of a run that goes wrong, and the diagnosis that is right for it: step, what and ranks."""

    step: int
    what: str
    ranks: list[int]
    report: list


REORDERED = [["all_reduce", [16]], ["all_reduce", [16, 8]]]
SOUND = {
    "nothing is wrong": run(5, 4),
    "one rank, which reads a sample twice": run(3, 1, put("samples", 1, 0, [5, 5, 9])),
    "no step was made": [],
    "samples return in the next epoch": run(
        4, 3, *(copied("samples", 3, rank, 2 - rank, source_step=0) for rank in range(3))
    ),
    "a random state returns on another rank, steps later": run(4, 3, copied("random", 3, 2, 0, source_step=0)),
}
FAULTY = {
    "a flipped bit in a weight of rank 2": FaultyRun(
        3, "parameters", [2], run(6, 4, odd("parameters", [2], range(3, 6)))
    ),
    "a flipped bit in the momentum of rank 3": FaultyRun(
        2, "optimizer", [3], run(6, 4, odd("optimizer", [3], range(2, 6)), odd("parameters", [3], range(3, 6)))
    ),
    "rank 0 is the odd one": FaultyRun(1, "parameters", [0], run(5, 4, odd("parameters", [0], range(1, 5)))),
    "two of five, each in its own way": FaultyRun(
        2, "optimizer", [1, 4], run(4, 5, odd("optimizer", [1, 4], range(2, 4), distinct=True))
    ),
    "two of five, alike": FaultyRun(1, "gradient", [0, 3], run(4, 5, odd("gradient", [0, 3], range(1, 4)))),
    "two of four against two": FaultyRun(2, "parameters", [], run(4, 4, odd("parameters", [1, 2], range(2, 4)))),
    "two agree, and each of the two others differs": FaultyRun(
        3, "parameters", [], run(4, 4, odd("parameters", [1, 2], [3], distinct=True))
    ),
    "no all-reduce took place": FaultyRun(
        1, "gradient", [], run(4, 4, odd("gradient", [0, 1, 2, 3], range(1, 4), distinct=True))
    ),
    "apart for one step, and then equal again": FaultyRun(2, "parameters", [1], run(6, 3, odd("parameters", [1], [2]))),
    "rank 2 reads one sample of rank 0": FaultyRun(1, "samples", [2], run(5, 4, copied("samples", 1, 2, 0, count=1))),
    "all read the same samples": FaultyRun(
        0, "samples", [1, 2], run(3, 3, *(copied("samples", step, rank, 0) for step in range(3) for rank in (1, 2)))
    ),
    "rank 3 reads what rank 1 reads, the other way round": FaultyRun(
        2, "samples", [3], run(4, 4, copied("samples", 2, 3, 1), lambda report: report[2][3]["samples"].reverse())
    ),
    "all ranks have the same dropout masks": FaultyRun(
        0, "random", [1, 2], run(4, 3, *(copied("random", step, rank, 0) for step in range(4) for rank in (1, 2)))
    ),
    "rank 3 takes over the random state of rank 1": FaultyRun(4, "random", [3], run(6, 4, copied("random", 4, 3, 1))),
    "rank 1 reduces in another order": FaultyRun(
        2, "collectives", [1], run(5, 4, put("collectives", 2, 1, REORDERED), odd("gradient", [1], range(2, 5)))
    ),
    "rank 0 leaves out an all-reduce": FaultyRun(
        3, "collectives", [0], run(5, 3, put("collectives", 3, 0, REORDERED[:1]))
    ),
    "rank 2 gathers instead": FaultyRun(
        1, "collectives", [2], run(4, 3, put("collectives", 1, 2, [["all_gather", [16, 8]], ["all_reduce", [16]]]))
    ),
    "one of two ranks reduces 17 numbers where 16 are right": FaultyRun(
        1, "collectives", [], run(3, 2, put("collectives", 1, 1, [REORDERED[1], ["all_reduce", [17]]]))
    ),
    "the cause stands before the symptoms of the same step": FaultyRun(
        2,
        "samples",
        [1],
        run(5, 4, copied("samples", 2, 1, 0), odd("gradient", [1, 3], [2]), odd("parameters", [3], range(2, 5))),
    ),
    "random states and weights in the same step": FaultyRun(
        1, "random", [1], run(4, 3, copied("random", 1, 1, 0), odd("parameters", [2], range(1, 4)))
    ),
    "two faults, and the first in time counts": FaultyRun(
        2, "parameters", [3], run(6, 4, copied("samples", 4, 2, 0), odd("parameters", [3], range(2, 6)))
    ),
}
REPORTS = SOUND | {scenario: fault.report for scenario, fault in FAULTY.items()}
JOBS = [Job(1, FUNCTION, tuple(Call([(report,)], scenario) for scenario, report in REPORTS.items()))]


@check(f"{len(SOUND)} sound runs are left alone", scenarios=SOUND, begin="{scenario}: ")
def a_sound_run_is_left_alone(case):
    look_at = {
        "samples return in the next epoch": "within one step, not in the whole run, no sample comes twice",
        "a random state returns on another rank, steps later": "random states are compared within a step",
    }.get(case.scenario, "samples and random states have to differ between the ranks, and nothing else")
    expect(case.results[0] is None, f"{FUNCTION} returned {case.results[0]!r}, not None", look_at)


@check("the step is the first one in which anything is wrong", scenarios=FAULTY, begin="{scenario}: ")
def the_first_step_is_named(case):
    [result], (step, what, _, _) = case.results, FAULTY[case.scenario]
    expect(
        isinstance(result, dict) and set(result) == {"step", "what", "ranks"},
        f"{FUNCTION} returned {result!r}",
        "the return value: a dict with step, what and ranks" if result is not None else missed(what),
    )
    if result["step"] != step:
        look_at = "is anything wrong in that step?"
        if result["step"] > step:
            look_at = missed(what) if what in (*PER_RANK, "collectives") else "a later step shows what followed"
        raise Wrong(f"{FUNCTION} named step {result['step']!r}, not {step}", look_at)


@check(
    "what is wrong first within the step is named, and not what follows from it", scenarios=FAULTY, begin="{scenario}: "
)
def the_cause_is_named(case):
    what, named = FAULTY[case.scenario].what, case.results[0]["what"]
    look_at = "a step reads samples, draws random numbers, communicates, and updates last: KINDS has this order"
    if what == "collectives":
        look_at = f"{missed(what)}; and a step communicates before it updates: KINDS has this order"
    expect(named == what, f"{FUNCTION} named {named!r}, not {what!r}", look_at)


@check(f"the ranks are right in {len(FAULTY)} runs, also where nobody can say", scenarios=FAULTY, begin="{scenario}: ")
def the_ranks_are_right(case):
    (_, what, ranks, _), named = FAULTY[case.scenario], case.results[0]["ranks"]
    if what in PER_RANK:
        look_at = "each rank that has what a lower rank has is wrong, and the lower rank is not"
    elif not ranks:
        look_at = "more than half of the ranks have to agree before another one can be called wrong"
    else:
        look_at = "all ranks that do not hold what more than half of the ranks hold; rank 0 is one of many"
    expect(named == ranks, f"{FUNCTION} named the ranks {named!r}, not {ranks}", look_at)


def missed(what):
    """Where to look if the answer has overlooked a difference in `what`."""
    return {
        "samples": "one sample that two ranks read in a step is enough, at any position",
        "random": "random states that are equal on two ranks",
        "collectives": "name, sizes and order of the collectives, also their number",
    }.get(what, f"{what}: equal on all ranks, in every step")
