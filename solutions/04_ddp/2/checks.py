"""04.2: a barrier in the clean-up holds back the traceback of a crash; a detector that sees it, and a clean run."""

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong

from .driver import TEXT, TIMEOUT

DETECTOR, REPAIRED = "hides_a_crash", "run"
SOON = TIMEOUT / 2  # seconds
VERSIONS = {
    "a barrier at the end of a good run": False,
    "a barrier in `finally`": True,
    "no barrier, and 1 s before training begins": False,
    "the error printed and dropped": True,
    "another error raised in its place": True,
    "no barrier, a clean-up of 1.2 s and a timeout of 4 s": False,
    "the error held back for six tenths of the timeout": True,
}


# Groups give up after about a second here, one after the other: such waits are no standstill.
def run_with(world, *crashing):
    calls = tuple(Call([(one,)] * world, "no crash" if one is None else f"rank {one} crashes") for one in crashing)
    return Job(world, REPAIRED, calls, seconds=7.0, patience=7.0, driver=True)


JOBS = [
    run_with(2, None, 1),
    run_with(3, 0),
    Job(2, DETECTOR, tuple(Call([(one,)] * 2, one) for one in VERSIONS), seconds=11.0, patience=8.0, driver=True),
]


def a_good_run_ends_well(records):
    """Without a crash run calls train once on each rank, returns, and has left the process group."""
    for case in runs(records):
        for rank, seen in enumerate(case.results):
            if seen["started"] != [rank]:
                called = "did not call train" if not seen["started"] else f"called train with {seen['started']}"
                raise Wrong(
                    f"{case.where}on rank {rank} {REPAIRED} {called}; it should call it once, with {rank}",
                    "what train is handed, and how often",
                )
            if abs(seen["timeout"] - TIMEOUT) > 1e-6:
                raise Wrong(
                    f"{case.where}{REPAIRED} joined the process group with a timeout of {seen['timeout']:g} s on rank "
                    f"{rank}; it was handed {TIMEOUT:g} s",
                    "the line that joins the group",
                )
            if case.given != "no crash":
                continue
            if seen["raised"] or seen["steps"] != 5:
                raise Wrong(
                    f"{case.where}rank {rank} did {seen['steps']} of 5 steps and {REPAIRED} raised {seen['raised']}",
                    "what happens after train has returned",
                )
            if not seen["group_is_left"]:
                raise Wrong(
                    f"{case.where}rank {rank} is still in the process group when {REPAIRED} has returned",
                    "which line leaves it, and on which way out",
                )
    return "a run without a crash ends on every rank and leaves its group"


def the_crash_comes_out(records):
    """The exception of the rank that crashes leaves run as it is, at once."""
    slowest = 0.0
    for case, crashing in crashes(records):
        seen = case.results[crashing]
        if not seen["raised"]:
            raise Wrong(
                f"{case.where}{REPAIRED} returned on rank {crashing} as if nothing had happened",
                "an `except` that does not raise",
            )
        late = "" if seen["seconds"] < SOON else f", {seen['seconds']:.1f} s after the crash"
        if seen["raised"] != [seen["crash"], TEXT]:
            raise Wrong(
                f"{case.where}{seen['raised'][0]} came out of {REPAIRED} on rank {crashing}{late}, not the "
                f"{seen['crash']} that train had raised",
                "what the clean-up does that can fail, or wait, when another rank is elsewhere",
            )
        if not seen["itself"]:
            raise Wrong(
                f"{case.where}a {seen['crash']} came out of {REPAIRED} on rank {crashing}, and it is not the one that "
                "train had raised: its traceback leads elsewhere",
                "the lines that the exception passes on its way out of train to the caller",
            )
        if late:
            raise Wrong(
                f"{case.where}the {seen['crash']} came out of {REPAIRED} on rank {crashing}{late}; it should take less "
                f"than {SOON:g} s",
                "what a rank that has crashed still waits for",
            )
        slowest = max(slowest, seen["seconds"])
    return f"a crash comes out as it is, after {slowest:.2f} s at most"


def the_others_hear_of_it(records):
    """The other ranks end soon after the crash, with an exception."""
    for case, crashing in crashes(records):
        for rank, seen in enumerate(case.results):
            if rank == crashing:
                continue
            if not seen["raised"]:
                raise Wrong(
                    f"{case.where}{REPAIRED} returned on rank {rank} after {seen['steps']} of 5 steps as if it had "
                    "finished",
                    "an `except` that does not raise: a job that lost a rank has failed on all of them",
                )
            if seen["seconds"] >= SOON:
                raise Wrong(
                    f"{case.where}rank {rank} came out of {REPAIRED} {seen['seconds']:.1f} s after the crash",
                    "what tells the others: a connection that closes, and then nothing else to wait for",
                )
    return "the other ranks end with it"


def the_detector_tells_them_apart(records):
    """hides_a_crash returns True on one rank for a run that holds a crash back or drops it, else False on all."""
    for case in cases(records[2:]):
        for rank, result in enumerate(case.results):
            if not isinstance(result, bool):
                raise Wrong(
                    f"given {case.given}, {DETECTOR} returned {result!r} on rank {rank}; it should be True or False",
                    "the line that returns, on every rank",
                )
        found = any(case.results)
        if found != VERSIONS[case.given]:
            raise Wrong(
                f"given {case.given}, {DETECTOR} returned {found}{' on both ranks' if not found else ''}",
                where_to_look(case.given),
            )
        if sum(case.results) > 1:
            raise Wrong(
                f"given {case.given}, {DETECTOR} returned True on {sum(case.results)} ranks; one rank crashes, and the "
                "others return False",
                "what a rank measures on which nothing was raised by your train",
            )
    return "hides_a_crash catches four versions that hold a crash back or lose it, and lets three good ones pass"


CHECKS = [a_good_run_ends_well, the_crash_comes_out, the_others_hear_of_it, the_detector_tells_them_apart]


def runs(records):
    return list(cases(records[:2]))


def crashes(records):
    return [(case, int(case.given.split()[1])) for case in runs(records) if case.given != "no crash"]


def where_to_look(given):
    if "finally" in given:
        return "where the other rank is meanwhile: if it has finished, or crashed too, the two meet in the barrier"
    if "before training" in given:
        return "from when you count: run may take its time to join, or to load, before it calls your train"
    if "clean-up" in given or "six tenths" in given:
        return "how long is too long: it depends on the timeout"
    if "in its place" in given:
        return "whether what comes out is the exception that your train has raised, or another one"
    if "dropped" in given:
        return "an exception that never comes out is hidden as well as one that comes late"
    return "how long an exception may take, and what of the rank that only lost contact"
