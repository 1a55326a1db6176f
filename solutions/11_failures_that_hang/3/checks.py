"""11.3: rank 0 does something for all, and fails, and the others wait: a failure that reaches every rank."""

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong

from .driver import TEXT


def calls(world):
    named = [
        ("the result is a dict", "returns", {"error": 0.1, "failed": True}),
        ("work raises a ValueError", "raises", "ValueError"),
        ("the result is None", "returns", None),
        ("work calls sys.exit", "raises", "no data"),
        ("the result is a pair, as an outcome is", "returns", [None, "ValueError: no"]),
        ("work raises a KeyError", "raises", "KeyError"),
        ("work opens a file that is not there", "raises", "FileNotFoundError"),
        ("work raises an error of its own kind, with two lines of text", "raises", "Damaged"),
        ("work raises a KeyboardInterrupt, as Ctrl-C does", "raises", "KeyboardInterrupt"),
        ("work returns an error and raises none", "an error as result", "kept for later"),
        ("the result is 0", "returns", 0),
    ]
    return tuple(Call([(kind, value)] * world, given) for given, kind, value in named)


JOBS = [Job(world, "on_rank_0", calls(world), driver=True) for world in (2, 3, 1)]


def work_runs_once(records):
    """work is called once, on rank 0, and on no other rank."""
    for case in cases(records):
        for rank, result in enumerate(case.results):
            if result["calls"] != (rank == 0):
                raise Wrong(
                    f"{case.where}rank {rank} called work {result['calls']} times",
                    "it may be a download, or a file that one rank writes: rank 0 calls it, once",
                )
    return "work runs once, on rank 0"


def results_arrive(records):
    """Where work returns, every rank returns its result, whatever it is."""
    for case in cases(records):
        kind, value = case.args[0]
        if kind == "raises":
            continue
        right = value if kind == "returns" else repr(ValueError(value))
        for rank, result in enumerate(case.results):
            if "returned" not in result or result["returned"] != right:
                found = f"returned {result['returned']!r}" if "returned" in result else f"raised {result['raised']}"
                raise Wrong(
                    f"{case.where}rank {rank} {found}; work returned {right!r}",
                    "how does a rank tell a result from a failure? Any result is possible",
                )
    return "every rank gets the result, also None, and an error that was returned and not raised"


def failures_arrive(records):
    """Where work fails, rank 0 raises that error, and every other rank an error that says which it was."""
    for case in cases(records):
        kind, value = case.args[0]
        if kind != "raises":
            continue
        error = "SystemExit" if value == "no data" else value
        for rank, result in enumerate(case.results):
            if "raised" not in result:
                raise Wrong(
                    f"{case.where}rank {rank} returned {result['returned']!r}, after work had failed on rank 0",
                    "what does a rank do that learns of a failure?",
                )
            if rank == 0 and result["raised"] != error:
                raise Wrong(
                    f"{case.where}rank 0 raised {result['raised']}, not the {error} of work",
                    "`raise` in the except block, or of the error that you kept, keeps the traceback",
                )
            if rank == 0 and not result["same"]:
                raise Wrong(
                    f"{case.where}rank 0 raised another {error} than work did: what the error holds besides its text, "
                    "and where it was raised, is lost",
                    "`raise` in the except block, or of the error that you kept: that very object",
                )
            if rank and result["raised"] in ("SystemExit", "KeyboardInterrupt"):
                raise Wrong(
                    f"{case.where}rank {rank} raised {result['raised']}, which ends a process without a traceback",
                    "an error of its own kind, such as a RuntimeError, says that another rank failed",
                )
            if rank and not (error in result["text"] and said(value) in result["text"]):
                raise Wrong(
                    f"{case.where}rank {rank} raised {result['raised']}: {result['text']}; it does not say what "
                    f"happened on rank 0, a {error} with the text {said(value)!r}",
                    "the log of rank 7 is all that somebody may have: type and text of the error belong into it",
                )
    return "every rank learns what failed on rank 0, and the group works on"


CHECKS = [work_runs_once, results_arrive, failures_arrive]


def said(value):
    """The text of work's error, but for the number that stands before that of a file's."""
    texts = {"no data": value, "Damaged": TEXT, "FileNotFoundError": "No such file or directory: 'settings.json'"}
    return texts.get(value, "it is not there")
