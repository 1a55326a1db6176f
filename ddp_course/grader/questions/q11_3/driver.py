"""Inside a rank, for 11.3: a function to be called on rank 0, which returns or raises, and what comes of it."""

import sys


def drive(on_rank_0, kind, value):
    """What on_rank_0 returned or raised on this rank, and how often it called the function."""
    calls = []

    def work():
        calls.append(1)
        if kind == "raises":
            raise {"ValueError": ValueError, "KeyError": KeyError}[value]("it is not there")
        if kind == "exits":
            sys.exit(value)
        return ValueError(value) if kind == "an error as result" else value

    try:
        returned = on_rank_0(work)
    except BaseException as error:  # also SystemExit: it is what this is about
        return {"calls": len(calls), "raised": type(error).__name__, "text": str(error)}
    return {"calls": len(calls), "returned": returned if not isinstance(returned, Exception) else repr(returned)}
