"""11.3: rank 0 calls a function for all ranks. If that fails, every rank has to raise, instead of waiting."""

from ddp_course.grader.vocabulary import Wrong, check, driver_job, expect

from .driver import TEXT

CASES = {  # scenario: what work does, with what value
    "the result is a dict": ("returns", {"error": 0.1, "failed": True}),
    "work raises a ValueError": ("raises", "ValueError"),
    "the result is None": ("returns", None),
    "work calls sys.exit": ("raises", "no data"),
    "the result is a pair of None and the text of an error": ("returns", [None, "ValueError: no"]),
    "work raises a KeyError": ("raises", "KeyError"),
    "work opens a file that is not there": ("raises", "FileNotFoundError"),
    "work raises an error of its own kind, with two lines of text": ("raises", "Damaged"),
    "work raises a KeyboardInterrupt, as Ctrl-C does": ("raises", "KeyboardInterrupt"),
    "work raises a CancelledError, which is no Exception and has no text": ("raises", "CancelledError"),
    "work returns an error and raises none": ("an error as result", "kept for later"),
    "the result is 0": ("returns", 0),
}
FAILURES = [scenario for scenario, (kind, _) in CASES.items() if kind == "raises"]
RESULTS = [scenario for scenario in CASES if scenario not in FAILURES]
JOBS = [driver_job(world, "on_rank_0", CASES) for world in (2, 3, 1)]


@check("work runs once, on rank 0")
def work_runs_once(case, rank, result):
    expect(
        result["calls"] == (rank == 0),
        f"rank {rank} called work {result['calls']} times",
        "work may download or write a file: rank 0 calls it, once",
    )


@check("every rank gets the result, also None, and an error that was returned and not raised", scenarios=RESULTS)
def results_arrive(case, rank, result):
    kind, value = case.args[0]
    right = value if kind == "returns" else repr(ValueError(value))
    outcome = f"returned {result['returned']!r}" if "returned" in result else f"raised {result['raised']}"
    expect(
        "returned" in result and result["returned"] == right,
        f"rank {rank} {outcome}; work returned {right!r}",
        "how does a rank tell a result from a failure? Any result is possible",
    )


@check("every rank learns what failed on rank 0, and the group works on", scenarios=FAILURES)
def failures_arrive(case, rank, result):
    value = case.args[0][1]
    error = "SystemExit" if value == "no data" else value
    if "raised" not in result:
        raise Wrong(
            f"rank {rank} returned {result['returned']!r}, after work had failed on rank 0",
            "a rank that receives a failure has to raise, too",
        )
    raised, text = result["raised"], result["text"]
    if rank == 0:
        expect(
            raised == error,
            f"rank 0 raised {raised}, not the {error} of work",
            "`raise` in the except block, or of the error that you kept, keeps the traceback",
        )
        expect(
            result["same_object"],
            f"rank 0 raised another {error} than work did: what the error holds besides its text, and where it was "
            "raised, is lost",
            "`raise` in the except block, or of the error that you kept: that very object",
        )
        return
    expect(
        raised not in ("SystemExit", "KeyboardInterrupt"),
        f"rank {rank} raised {raised}, which ends a process without a traceback",
        "an error of its own kind, such as a RuntimeError, says that another rank failed",
    )
    missing = [part for part in (error, text_of(value)) if part not in text]
    expect(
        not missing,
        f"rank {rank} raised {raised} with the text {text!r}; of the error on rank 0 it lacks "
        f"{' and '.join(map(repr, missing))}",
        "the log of rank 7 may be the only one at hand: it needs type and text of the error",
    )


def text_of(value):
    """The text of work's error; of the FileNotFoundError without the "[Errno 2]" before it."""
    missing_file = "No such file or directory: 'settings.json'"
    texts = {"no data": value, "Damaged": TEXT, "FileNotFoundError": missing_file, "CancelledError": ""}
    return texts.get(value, "it is not there")
