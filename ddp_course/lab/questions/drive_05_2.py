"""Inside a rank, for 05.2 and 05.3: whole numbers of any kind, such as NumPy's, go to the grader as Python's."""

from numbers import Integral


def drive(function, *arguments):
    """`function` is draw or run. What it returned."""
    return plain(function(*arguments))


def plain(value):
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value
