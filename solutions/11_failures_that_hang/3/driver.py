"""Inside a rank, for 11.3: a function to be called on rank 0, which returns or raises, and what comes of it."""

import torch.distributed as dist

TEXT = "the file settings.json is damaged, and so is the copy of it made at the last start:\nline 3 is not JSON"


class Damaged(Exception):
    """An error that pickle cannot make again, as many are: it is not made of its text."""

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
    }

    def work():
        calls.append(1)
        if kind == "raises":
            raise errors[value]
        return ValueError(value) if kind == "an error as result" else value

    try:
        returned = on_rank_0(work)
    except BaseException as error:  # also SystemExit: it is what this is about
        same = kind == "raises" and error is errors[value]
        return {"calls": len(calls), "raised": type(error).__name__, "text": str(error), "same": same}
    finally:
        dist.barrier()  # a broadcast need not wait: rank 0 would be calls ahead when it shows that the ranks parted
    return {"calls": len(calls), "returned": returned if not isinstance(returned, Exception) else repr(returned)}
