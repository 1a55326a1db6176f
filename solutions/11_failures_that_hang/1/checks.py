"""11.1: a function that reads from what the ranks of a dead job left which ranks are to blame, and which line."""

from ddp_course.grader.vocabulary import Call, Job, check, expect

FUNCTION = "blame"
SYMPTOMS = ("Connection closed by peer", "Connection reset by peer", "Timed out waiting", "Application timeout caused")
# As gloo writes it: the symptom stands in the middle.
CLOSED = "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]"
RESET = "RuntimeError: Connection reset by peer"
TIMED_OUT = "RuntimeError: Timed out waiting 4000ms for recv operation"
PAIR = "RuntimeError: Application timeout caused pair closure"


def rank(*started, error=None, exit_code=1):
    """started: (name, sizes, line); error: (seconds, line, text)."""
    return {
        "started": [list(collective) for collective in started],
        "error": error and list(error),
        "exit_code": exit_code,
    }


STEP, STEP_4 = ("all_reduce", [4], 12), ("all_reduce", [4], 14)
METRIC, END, HALF = ("all_reduce", [1], 15), ("barrier", [], 17), ("all_reduce", [2], 12)
MADE_UP = [
    ("all ended well", [rank(STEP, END, exit_code=0), rank(STEP, END, exit_code=0)]),
    ("no rank started anything", [rank(exit_code=0), rank(exit_code=0)]),
    ("one rank, which ended well", [rank(STEP, exit_code=0)]),
    (
        "a metric on rank 0 only, which timed out",
        [rank(STEP, STEP, METRIC, error=(9.5, 15, TIMED_OUT)), rank(STEP, STEP, exit_code=-15)],
    ),
    ("a metric on rank 1 only", [rank(STEP, exit_code=-15), rank(STEP, METRIC, error=(8.0, 15, TIMED_OUT))]),
    (
        "a metric on ranks 0 and 2",
        [
            rank(STEP, METRIC, error=(6.0, 15, TIMED_OUT)),
            rank(STEP, exit_code=-15),
            rank(STEP, METRIC, error=(6.0, 15, TIMED_OUT)),
        ],
    ),
    (
        "two of three left early",
        [rank(STEP, exit_code=0), rank(STEP, STEP, error=(4.1, 12, CLOSED)), rank(STEP, exit_code=0)],
    ),
    ("rank 1 was killed", [rank(STEP, STEP, error=(3.2, 12, RESET)), rank(STEP, exit_code=-9)]),
    ("rank 0 left with exit code 0", [rank(STEP, exit_code=0), rank(STEP, STEP, error=(3.3, 12, CLOSED))]),
    (
        "rank 1 raised, in no line of the script, and rank 0 lost contact",
        [rank(STEP, STEP, error=(5.2, 12, CLOSED)), rank(STEP, error=(5.1, None, "MemoryError"))],
    ),
    (
        "rank 0 lost contact first, by its clock; rank 1 raised, and its exit code is 0",
        [
            rank(STEP, STEP, error=(5.0, 12, CLOSED)),
            rank(STEP, error=(5.1, 11, "ValueError: a label of -1"), exit_code=0),
        ],
    ),
    (
        "two ranks raised, rank 2 first, after 0.0 seconds",
        [
            rank(STEP, error=(7.4, 13, "KeyError: 'loss'")),
            rank(STEP, STEP, error=(7.5, 12, RESET)),
            rank(STEP, error=(0.0, 11, "OSError: No space left on device")),
        ],
    ),
    (
        "an error of the user's own about a closed file",
        [rank(STEP, STEP, error=(2.2, 12, CLOSED)), rank(STEP, error=(2.1, 19, "ValueError: I/O on closed file"))],
    ),
    (
        "the last batch is smaller on rank 1",
        [rank(STEP, STEP, error=(2.0, 12, CLOSED)), rank(STEP, HALF, exit_code=-6)],
    ),
    (
        "rank 0 is in a barrier, ranks 1 and 2 in a step",
        [
            rank(STEP, END, error=(5.0, 17, TIMED_OUT)),
            rank(STEP, STEP, error=(5.0, 12, TIMED_OUT)),
            rank(STEP, STEP_4, error=(5.0, 14, PAIR)),
        ],
    ),
    (
        "the same collective from two lines is the same",
        [rank(STEP, STEP_4, END, error=(5.0, 17, TIMED_OUT)), rank(STEP_4, STEP, exit_code=-15)],
    ),
    (
        "they part twice, and the first time counts",
        [rank(STEP, METRIC, STEP, END, error=(5.0, 17, TIMED_OUT)), rank(STEP, STEP, STEP, STEP, exit_code=-15)],
    ),
    (
        "they part, and later rank 1 is short",
        [rank(STEP, HALF, STEP, error=(5.0, 12, PAIR)), rank(STEP, STEP, exit_code=-15)],
    ),
    (
        "rank 2 lacks what 0 and 1 do not agree about",
        [rank(STEP, HALF, error=(5.0, 12, PAIR)), rank(STEP, STEP_4, exit_code=-15), rank(STEP, exit_code=0)],
    ),
]
JOBS = [Job(1, function=FUNCTION, calls=tuple(Call([(ranks,)], scenario) for scenario, ranks in MADE_UP))]


@check(f"{FUNCTION} is right about {len(MADE_UP)} jobs", begin="{scenario}: ")
def the_blame_is_right(case):
    [result], right = case.results, blame(case.args[0][0])
    expect(result == right, f"{FUNCTION} returned {result!r}, not {right!r}", lambda: look_at(result, right))


def blame(ranks):
    """The right return value of the learner's function of this name."""
    errors = [(*rank["error"], number) for number, rank in enumerate(ranks) if rank["error"]]
    causes = [each for each in errors if not any(symptom in each[2] for symptom in SYMPTOMS)]
    if causes:
        _, line, _, number = min(causes)
        return {"what": "error", "ranks": [number], "line": line}
    for index in range(max(len(rank["started"]) for rank in ranks)):
        entries = [rank["started"][index] if index < len(rank["started"]) else None for rank in ranks]
        missing = [number for number, entry in enumerate(entries) if entry is None]
        if missing and len(missing) < len(ranks):
            return {"what": "missing", "ranks": missing, "line": next(entry[2] for entry in entries if entry)}
        unlike = [number for number, entry in enumerate(entries) if entry[:2] != entries[0][:2]]
        if unlike:
            return {"what": "unlike", "ranks": unlike, "line": entries[unlike[0]][2]}
    return None


def look_at(result, right):
    if right is None:
        return "all ranks started the same, and no error is left: nobody is to blame"
    if result is not None and (not isinstance(result, dict) or set(result) != {"what", "ranks", "line"}):
        return "the return value: a dict with what, ranks and line, or None"
    if result is None or result["what"] != right["what"]:
        return {
            "error": "which of the errors says more than that a peer is gone?",
            "missing": "the first number that one rank lacks; errors that are symptoms do not count",
            "unlike": "the first number at which the ranks did not start the same, sizes included",
        }[right["what"]]
    if result["ranks"] != right["ranks"]:
        return "what the seconds say" if right["what"] == "error" else "all ranks that lack it, or are unlike rank 0"
    return {
        "error": "the line of that error",
        "missing": "the line in which the others started it, of the lowest rank",
        "unlike": "the line of the lowest rank that is unlike rank 0",
    }[right["what"]]
