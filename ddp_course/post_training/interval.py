"""The interval of a mean over seeds as a pair of ends; `base.intervals` also gives its mean and p-value."""

from collections.abc import Sequence

from ddp_course.base.intervals import t_interval


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """The interval that holds the true mean in 95 of 100 experiments, such as one value for each seed."""
    _, low, high, _ = t_interval(values)
    return low, high
