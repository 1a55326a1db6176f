"""11.1: a function that finds in the records of a dead job which ranks are to blame, and at which line."""

from itertools import zip_longest

from ddp_course.grader.vocabulary import check, expect, function_job

FUNCTION = "blame"
SYMPTOMS = ("Connection closed by peer", "Connection reset by peer", "Timed out waiting", "Application timeout caused")
# Errors as gloo raises them: a symptom is only part of the text.
CLOSED = "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]"
RESET = "RuntimeError: Connection reset by peer"
TIMED_OUT = "RuntimeError: Timed out waiting 4000ms for recv operation"
PAIR_CLOSED = "RuntimeError: Application timeout caused pair closure"


def record(*started, error=None, exit_code=1):
    """The record that a rank left. started: (name, sizes, line) of each collective; error: (seconds, line, text)."""
    return {
        "started": [list(collective) for collective in started],
        "error": error and list(error),
        "exit_code": exit_code,
    }


STEP, STEP_LINE_14 = ("all_reduce", [4], 12), ("all_reduce", [4], 14)
METRIC, END, HALF = ("all_reduce", [1], 15), ("barrier", [], 17), ("all_reduce", [2], 12)
TABLE, TRANSPOSED = ("all_gather", [2, 8], 12), ("all_gather", [8, 2], 12)
RECORDS = {  # scenario: the record of each rank
    "all ended well": [record(STEP, END, exit_code=0), record(STEP, END, exit_code=0)],
    "no rank started anything": [record(exit_code=0), record(exit_code=0)],
    "one rank, which ended well": [record(STEP, exit_code=0)],
    "a metric on rank 0 only, which timed out": [
        record(STEP, STEP, METRIC, error=(9.5, 15, TIMED_OUT)),
        record(STEP, STEP, exit_code=-15),
    ],
    "a metric on rank 1 only": [record(STEP, exit_code=-15), record(STEP, METRIC, error=(8.0, 15, TIMED_OUT))],
    "a metric on ranks 0 and 2, and rank 0 had gone on": [
        record(STEP, METRIC, END, error=(6.0, 17, TIMED_OUT)),
        record(STEP, exit_code=-15),
        record(STEP, METRIC, error=(6.0, 15, TIMED_OUT)),
    ],
    "two of three left early": [
        record(STEP, exit_code=0),
        record(STEP, STEP, error=(4.1, 12, CLOSED)),
        record(STEP, exit_code=0),
    ],
    "rank 1 was killed": [record(STEP, STEP, error=(3.2, 12, RESET)), record(STEP, exit_code=-9)],
    "rank 0 left with exit code 0": [record(STEP, exit_code=0), record(STEP, STEP, error=(3.3, 12, CLOSED))],
    "rank 1 raised, in no line of the script, and rank 0 lost contact": [
        record(STEP, STEP, error=(5.2, 12, CLOSED)),
        record(STEP, error=(5.1, None, "MemoryError")),
    ],
    "rank 0 lost contact first, by its clock; rank 1 raised, and its exit code is 0": [
        record(STEP, STEP, error=(5.0, 12, CLOSED)),
        record(STEP, error=(5.1, 11, "ValueError: a label of -1"), exit_code=0),
    ],
    "two ranks raised, rank 2 first, after 0.0 seconds": [
        record(STEP, error=(7.4, 13, "KeyError: 'loss'")),
        record(STEP, STEP, error=(7.5, 12, RESET)),
        record(STEP, error=(0.0, 11, "OSError: No space left on device")),
    ],
    "an error of the user's own about a closed file": [
        record(STEP, STEP, error=(2.2, 12, CLOSED)),
        record(STEP, error=(2.1, 19, "ValueError: I/O on closed file")),
    ],
    "the last batch is smaller on rank 1": [
        record(STEP, STEP, error=(2.0, 12, CLOSED)),
        record(STEP, HALF, exit_code=-6),
    ],
    "rank 0 is in a barrier, ranks 1 and 2 in a step": [
        record(STEP, END, error=(5.0, 17, TIMED_OUT)),
        record(STEP, STEP, error=(5.0, 12, TIMED_OUT)),
        record(STEP, STEP_LINE_14, error=(5.0, 14, PAIR_CLOSED)),
    ],
    "the same collective from two lines is the same": [
        record(STEP, STEP_LINE_14, END, error=(5.0, 17, TIMED_OUT)),
        record(STEP_LINE_14, STEP, exit_code=-15),
    ],
    "rank 0 left, ranks 1 and 2 started it in two lines, and rank 2 had gone on": [
        record(STEP, exit_code=0),
        record(STEP, STEP, error=(6.0, 12, TIMED_OUT)),
        record(STEP, STEP_LINE_14, END, error=(6.0, 17, CLOSED)),
    ],
    "rank 1 gathers a transposed table": [
        record(TABLE, error=(5.0, 12, PAIR_CLOSED)),
        record(TRANSPOSED, exit_code=-15),
    ],
    "they differ twice, and the first time counts": [
        record(STEP, METRIC, STEP, END, error=(5.0, 17, TIMED_OUT)),
        record(STEP, STEP, STEP, STEP, exit_code=-15),
    ],
    "they differ, and later rank 1 lacks a collective": [
        record(STEP, HALF, STEP, error=(5.0, 12, PAIR_CLOSED)),
        record(STEP, STEP, exit_code=-15),
    ],
    "ranks 0 and 1 differ in a collective that rank 2 lacks": [
        record(STEP, HALF, error=(5.0, 12, PAIR_CLOSED)),
        record(STEP, STEP_LINE_14, exit_code=-15),
        record(STEP, exit_code=0),
    ],
}
ALL_OF_THEM = "all ranks that lack it, or are unlike rank 0"
LOOK = {  # what is to blame: where to look if an entry of the result is wrong
    "error": {
        "what": "which of the errors says more than that a peer is gone?",
        "ranks": "the first error in time, by its seconds",
        "line": "the line of that error",
    },
    "missing": {
        "what": "the first number that one rank lacks; errors that are symptoms do not count",
        "ranks": ALL_OF_THEM,
        "line": "the line in which the others started it, of the lowest rank",
    },
    "unlike": {
        "what": "the first number at which the ranks did not start the same, sizes included",
        "ranks": ALL_OF_THEM,
        "line": "the line of the lowest rank that is unlike rank 0",
    },
}
JOBS = [function_job(1, FUNCTION, {scenario: (ranks,) for scenario, ranks in RECORDS.items()})]


@check(f"{FUNCTION} is right about {len(RECORDS)} jobs", begin="{scenario}: ")
def the_blame_is_right(case):
    [result], right = case.results, blame(case.args[0][0])
    expect(result == right, f"{FUNCTION} returned {result!r}, not {right!r}", lambda: where_to_look(result, right))


def blame(ranks):
    """The right return value of the learner's function of this name."""
    errors = [(*record["error"], rank) for rank, record in enumerate(ranks) if record["error"]]
    causes = [error for error in errors if not any(symptom in error[2] for symptom in SYMPTOMS)]
    if causes:
        _, line, _, rank = min(causes)
        return {"what": "error", "ranks": [rank], "line": line}
    for entries in zip_longest(*(record["started"] for record in ranks)):
        missing = [rank for rank, entry in enumerate(entries) if entry is None]
        if missing:
            return {"what": "missing", "ranks": missing, "line": next(entry[2] for entry in entries if entry)}
        unlike = [rank for rank, entry in enumerate(entries) if entry[:2] != entries[0][:2]]
        if unlike:
            return {"what": "unlike", "ranks": unlike, "line": entries[unlike[0]][2]}
    return None


def where_to_look(result, right):
    """Where to look if the answer returned `result` instead of `right`."""
    if right is None:
        return "all ranks started the same collectives, and no error is more than a symptom: no rank is to blame"
    if result is not None and (not isinstance(result, dict) or set(result) != {"what", "ranks", "line"}):
        return "the return value: a dict with what, ranks and line, or None"
    looks = LOOK[right["what"]]
    return next(look for entry, look in looks.items() if result is None or result[entry] != right[entry])
