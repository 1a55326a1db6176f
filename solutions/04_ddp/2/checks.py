"""04.2: a barrier in the clean-up holds back the traceback of a crash; a detector that sees it, and a clean run."""

from ddp_course.grader.vocabulary import Call, Job, check, driver_job, expect

from .driver import TEXT, TIMEOUT, VERSIONS

DETECTOR, REPAIRED = "hides_a_crash", "run"
SOON = TIMEOUT / 2  # seconds
NO_CRASH, CRASHES = "no crash", ("rank 0 crashes", "rank 1 crashes")


# Groups give up after about a second here, one after the other: such waits are no standstill.
def run_with(world, *crashing):
    calls = tuple(Call([(rank,)] * world, NO_CRASH if rank is None else CRASHES[rank]) for rank in crashing)
    return Job(world, REPAIRED, calls, seconds=7.0, patience=7.0, driver=True)


RUNS = [run_with(2, None, 1), run_with(3, 0)]
DETECTION = driver_job(2, DETECTOR, list(VERSIONS), seconds=11.0, patience=8.0)
JOBS = [*RUNS, DETECTION]


@check("a run without a crash ends on every rank and leaves its group", RUNS)
def a_good_run_ends_well(case, rank, result):
    called = f"called train with {result['started']}" if result["started"] else "did not call train"
    expect(
        result["started"] == [rank],
        f"on rank {rank} {REPAIRED} {called}; it should call it once, with {rank}",
        "what train is handed, and how often",
    )
    expect(
        abs(result["timeout"] - TIMEOUT) <= 1e-6,
        f"{REPAIRED} joined the process group with a timeout of {result['timeout']:g} s on rank {rank}; it was handed "
        f"{TIMEOUT:g} s",
        "the line that joins the group",
    )
    if case.scenario != NO_CRASH:
        return
    expect(
        not result["raised"] and result["steps"] == 5,
        f"rank {rank} did {result['steps']} of 5 steps and {REPAIRED} raised {result['raised']}",
        "what happens after train has returned",
    )
    expect(
        result["group_is_left"],
        f"rank {rank} is still in the process group when {REPAIRED} has returned",
        "which line leaves it, and on which way out",
    )


@check(lambda seconds: f"a crash comes out as it is, after {max(seconds):.2f} s at most", RUNS, scenarios=CRASHES)
def the_crash_comes_out(case):
    rank = case.args[0][0]
    result = case.results[rank]
    expect(
        result["raised"],
        f"{REPAIRED} returned on rank {rank} as if nothing had happened",
        "an `except` that does not raise",
    )
    crash, raised, seconds = (result[name] for name in ("crash", "raised", "seconds"))
    late = "" if seconds < SOON else f", {seconds:.1f} s after the crash"
    expect(
        raised == [crash, TEXT],
        f"{raised[0]} came out of {REPAIRED} on rank {rank}{late}, not the {crash} that train had raised",
        "what the clean-up does that can fail, or wait, when another rank is elsewhere",
    )
    expect(
        result["itself"],
        f"a {crash} came out of {REPAIRED} on rank {rank}, and it is not the one that train had raised: its traceback "
        "leads elsewhere",
        "the lines that the exception passes on its way out of train to the caller",
    )
    expect(
        not late,
        f"the {crash} came out of {REPAIRED} on rank {rank}{late}; it should take less than {SOON:g} s",
        "what a rank that has crashed still waits for",
    )
    return seconds


@check("the other ranks end with it", RUNS, scenarios=CRASHES)
def the_others_hear_of_it(case, rank, result):
    if rank == case.args[0][0]:
        return
    expect(
        result["raised"],
        f"{REPAIRED} returned on rank {rank} after {result['steps']} of 5 steps as if it had finished",
        "an `except` that does not raise: a job that lost a rank has failed on all of them",
    )
    expect(
        result["seconds"] < SOON,
        f"rank {rank} came out of {REPAIRED} {result['seconds']:.1f} s after the crash",
        "what tells the others: a connection that closes, and then nothing else to wait for",
    )


@check(
    f"{DETECTOR} catches four versions that hold a crash back or lose it, and lets three good ones pass",
    [DETECTION],
    begin="given {scenario}, ",
)
def the_detector_tells_them_apart(case):
    for rank, result in enumerate(case.results):
        expect(
            isinstance(result, bool),
            f"{DETECTOR} returned {result!r} on rank {rank}; it should be True or False",
            "the line that returns, on every rank",
        )
    _, hides = VERSIONS[case.scenario]
    expect(
        any(case.results) == hides,
        f"{DETECTOR} returned {'False on both ranks' if hides else 'True'}",
        where_to_look(case.scenario),
    )
    expect(
        sum(case.results) <= 1,
        f"{DETECTOR} returned True on {sum(case.results)} ranks; one rank crashes, and the others return False",
        "what a rank measures on which nothing was raised by your train",
    )


def where_to_look(scenario):
    if "finally" in scenario:
        return "where the other rank is meanwhile: if it has finished, or crashed too, the two meet in the barrier"
    if "before training" in scenario:
        return "from when you count: run may take its time to join, or to load, before it calls your train"
    if "clean-up" in scenario or "six tenths" in scenario:
        return "how long is too long: it depends on the timeout"
    if "in its place" in scenario:
        return "whether what comes out is the exception that your train has raised, or another one"
    if "dropped" in scenario:
        return "an exception that never comes out is hidden as well as one that comes late"
    return "how long an exception may take, and what of the rank that only lost contact"
