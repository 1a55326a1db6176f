"""Count how often a detector calls the function that it is handed: in a tensor, which the grader gets back."""

from collections.abc import Callable

from torch import Tensor


def counted(function: Callable, calls: Tensor) -> Callable:
    """`function`, which adds 1 to `calls`, of shape (1,), whenever it is called."""

    def call(*args, **kwargs):
        calls.add_(1)
        return function(*args, **kwargs)

    return call
