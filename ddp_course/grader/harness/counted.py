"""Count how often a detector calls the function that it is given, in a tensor that the grader reads afterwards."""

from collections.abc import Callable

from torch import Tensor


def counted(function: Callable, calls: Tensor) -> Callable:
    """A function that adds 1 to `calls`, of shape (1,), and then calls `function`."""

    def call(*args, **kwargs):
        calls.add_(1)
        return function(*args, **kwargs)

    return call
