"""The interval of a mean over seeds as a pair of ends; `base.intervals` also gives its mean and p-value."""

import math
from collections.abc import Sequence

from ddp_course.base.intervals import t_interval, wilson_interval

__all__ = ["mean_interval", "paired_interval", "wilson_interval"]


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """The interval that holds the true mean in 95 of 100 experiments, such as one value for each seed."""
    _, low, high, _ = t_interval(values)
    return low, high


def paired_interval(gained: float, lost: float, count: float, z: float = 1.96) -> tuple[float, float]:
    """The interval of a difference of two shares that were counted on the same `count` trials.

    gained: trials that the first got right and the second did not; lost: the reverse. Trials on which both agree say
    nothing of the difference, so this is narrower than two intervals side by side. Wald's, for many trials: Newcombe,
    "Improved confidence intervals for the difference between binomial proportions based on paired data" (1998).
    """
    difference = (gained - lost) / count
    half = z / count * math.sqrt(max(0.0, gained + lost - count * difference**2))
    return difference - half, difference + half
