"""Hand a detector right and wrong versions of a function, and count their calls where the grader reads it."""

import gc
from collections.abc import Callable, Mapping

from torch import Tensor


def counted(function: Callable, calls: Tensor) -> Callable:
    """A function that adds 1 to `calls`, of shape (1,), and then calls `function`."""

    def call(*args, **kwargs):
        calls.add_(1)
        return function(*args, **kwargs)

    return call


def driver_of(versions: Mapping[str, Callable], try_out: Callable) -> Callable:
    """The `drive` of a driver.py whose checks.py calls it with (the name of a version, further arguments).

    It returns what the learner's detector returns for that version; for the name "own" the result of `try_out` for the
    learner's own function and the further arguments. Those of a detector end with the tensor that counts the calls of
    the version; without arguments they are not counted.
    """

    def drive(function, name, *arguments):
        try:
            if name == "own":
                return try_out(function, *arguments)
            *arguments, calls = arguments or [None]
            return function(versions[name] if calls is None else counted(versions[name], calls), *arguments)
        finally:
            gc.collect()  # a DDP wrapper that outlives its group can abort the process

    return drive
