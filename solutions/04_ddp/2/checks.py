"""04.2: a barrier in the clean-up holds back the traceback of a crash; a detector that sees it, and a clean run."""

from ddp_course.grader.vocabulary import by_pattern, check, driver_job, expect, verdicts_of

from .driver import TIMEOUT, VERSIONS

DETECTOR, REPAIRED = "hides_a_crash", "run"
LONGEST_DELAY = TIMEOUT / 2  # seconds from a crash until run has ended
NO_CRASH, CRASHES = "no crash", ("rank 0 crashes", "rank 1 crashes")


# A rank may wait for the timeouts of several groups in a row: hence the patience.
def run_with(world, *crashing_ranks):
    """A job that calls the learner's run once for each crashing rank; None: no rank crashes."""
    calls = {NO_CRASH if rank is None else CRASHES[rank]: (rank,) for rank in crashing_ranks}
    return driver_job(world, REPAIRED, calls, seconds=10.0, patience=10.0)


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
        "which line leaves it, and in which cases that line is reached",
    )


@check(lambda seconds: f"a crash comes out as it is, after {max(seconds):.2f} s at most", RUNS, scenarios=CRASHES)
def the_crash_comes_out(case):
    crashing_rank = case.args[0][0]
    result = case.results[crashing_rank]
    expect(
        result["raised"],
        f"{REPAIRED} returned on rank {crashing_rank} as if nothing had happened",
        "an `except` that does not raise",
    )
    crash, raised, seconds = result["crash"], result["raised"], result["seconds"]
    delay = "" if seconds < LONGEST_DELAY else f", {seconds:.1f} s after the crash"
    expect(
        raised[0] == crash,
        f"{raised[0]} came out of {REPAIRED} on rank {crashing_rank}{delay}, not the {crash} that train had raised",
        "what in the clean-up can fail, or wait, while another rank is still in train"
        if delay
        else "the lines that the exception passes on its way out of train: which of them raises another one?",
    )
    expect(
        result["same_exception"],
        f"a {crash} came out of {REPAIRED} on rank {crashing_rank}, and it is not the one that train had raised: its "
        "traceback leads to another line",
        "the lines that the exception passes on its way out of train to the caller",
    )
    expect(
        not delay,
        f"the {crash} came out of {REPAIRED} on rank {crashing_rank}{delay}; it should take less than "
        f"{LONGEST_DELAY:g} s",
        "what a rank that has crashed still waits for",
    )
    return seconds


@check("the other ranks end with it", RUNS, scenarios=CRASHES)
def the_other_ranks_fail_too(case, rank, result):
    if rank == case.args[0][0]:
        return
    expect(
        result["raised"],
        f"{REPAIRED} returned on rank {rank} after {result['steps']} of 5 steps as if it had finished",
        "an `except` that does not raise: a job that lost a rank has failed on all of them",
    )
    expect(
        result["seconds"] < LONGEST_DELAY,
        f"rank {rank} came out of {REPAIRED} {result['seconds']:.1f} s after the crash",
        "how the other ranks notice the crash: a connection closes, and then they should wait for nothing else",
    )


@check(
    f"{DETECTOR} catches four versions that hold a crash back or lose it, and lets three good ones pass",
    [DETECTION],
    begin="given {scenario}, ",
)
def the_detector_tells_them_apart(case):
    verdicts = verdicts_of(case, DETECTOR)
    _, _, hides = VERSIONS[case.scenario]
    expect(
        any(verdicts) == hides,
        f"{DETECTOR} returned {'False on both ranks' if hides else 'True'}",
        where_to_look(case.scenario),
    )
    expect(
        sum(verdicts) <= 1,
        f"{DETECTOR} returned True on {sum(verdicts)} ranks; one rank crashes, and the others return False",
        "what your detector measures on a rank where your train raised nothing",
    )


where_to_look = by_pattern(
    {
        "finally": "where the other rank is meanwhile: if it has ended or waits in a barrier, the two meet in one",
        "before training": "when your clock starts: run may need time to join, or to load, before it calls your train",
        "clean-up|six tenths": "how long is too long: it depends on the timeout",
        "in its place": "whether what comes out is the exception that your train has raised, or another one",
        "dropped": "an exception that never comes out is as hidden as one that comes out late",
        "": "how long an exception may take, and what a rank returns that did not crash",
    }
)
