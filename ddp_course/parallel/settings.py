"""Whether the numbers on a command line make sense: told before anything is started, not after an hour."""

import importlib.util
from collections.abc import Iterable


def check_ranges(
    config: object, *, at_least_1: Iterable[str] = (), at_least_0: Iterable[str] = (), above_0: Iterable[str] = ()
) -> None:
    """Raise ValueError, with the flag and what would be right, unless each named setting of `config` is in its range.

    None stands for "no limit", which is fine everywhere; nan is fine nowhere.
    """
    for names, expected, fine in (
        (at_least_1, "at least 1", lambda value: value >= 1),
        (at_least_0, "at least 0", lambda value: value >= 0),
        (above_0, "above 0", lambda value: value > 0),
    ):
        for name in names:
            value = getattr(config, name)
            if value is not None and not fine(value):
                raise ValueError(f"--{name.replace('_', '-')} must be {expected}, not {value}")


def check_tensorboard(asked: bool) -> None:
    """TensorBoard is an optional extra: asked for and not there is an error (ValueError), never a silent nothing."""
    if asked and importlib.util.find_spec("tensorboard") is None:
        raise ValueError("--tensorboard needs a package that is not installed: pip install tensorboard")
