"""Inside a rank, for 11.3: call on_rank_0 with a function that returns or raises, and report the outcome."""

import asyncio

import torch.distributed as dist

TEXT = "the file settings.json is damaged, and so is the copy of it made at the last start:\nline 3 is not JSON"


class Damaged(Exception):
    """An error that cannot be unpickled, like many: its __init__ takes other arguments than its text."""

    def __init__(self, path, copy):
        super().__init__(TEXT.replace("settings.json", path, 1))
        self.copy = copy


def drive(on_rank_0, kind, value):
    """The result or error of on_rank_0 on this rank, and how often it called the function."""
    calls = []
    errors = {
        "ValueError": ValueError("it is not there"),
        "KeyError": KeyError("it is not there"),
        "Damaged": Damaged("settings.json", "settings.json.old"),
        "KeyboardInterrupt": KeyboardInterrupt("it is not there"),
        "FileNotFoundError": FileNotFoundError(2, "No such file or directory", "settings.json"),
        "no data": SystemExit("no data"),
        "CancelledError": asyncio.CancelledError(),  # no Exception, and without a text
    }

    def work():
        calls.append(1)
        if kind == "raises":
            raise errors[value]
        return ValueError(value) if kind == "an error as result" else value

    try:
        returned = on_rank_0(work)
    except BaseException as error:  # on_rank_0 may raise SystemExit or KeyboardInterrupt
        same_object = kind == "raises" and error is errors[value]
        return {"calls": len(calls), "raised": type(error).__name__, "text": str(error), "same_object": same_object}
    finally:
        # A broadcast does not wait for its receivers. Without the barrier rank 0 could be several calls ahead when
        # the ranks' collectives no longer match.
        dist.barrier()
    return {"calls": len(calls), "returned": repr(returned) if isinstance(returned, Exception) else returned}
