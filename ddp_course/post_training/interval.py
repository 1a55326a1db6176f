"""How far a share that was counted, or a mean over seeds, may be from the true one, and the difference of two."""

import math
import statistics
from collections.abc import Sequence

STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # 97.5 % quantiles of t, for 2 to 10 values


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """The interval that holds the true mean in 95 of 100 experiments of 2 to 10 values, such as one for each seed."""
    half = STUDENT[len(values) - 2] * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values) - half, statistics.mean(values) + half


def wilson_interval(successes: float, count: float, z: float = 1.96) -> tuple[float, float]:
    """The interval that holds the true share in 95 of 100 experiments (for z = 1.96), between 0 and 1.

    Wilson, "Probable inference, the law of succession, and statistical inference" (1927). Unlike share ± z * standard
    error it stays within 0 and 1 and is honest for few trials.
    """
    share, spread = successes / count, z**2 / count
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def paired_interval(gained: float, lost: float, count: float, z: float = 1.96) -> tuple[float, float]:
    """The interval of a difference of two shares that were counted on the same `count` trials.

    gained: trials that the first got right and the second did not; lost: the reverse. Trials on which both agree say
    nothing of the difference, so this is narrower than two intervals side by side. Wald's, for many trials: Newcombe,
    "Improved confidence intervals for the difference between binomial proportions based on paired data" (1998).
    """
    difference = (gained - lost) / count
    half = z / count * math.sqrt(max(0.0, gained + lost - count * difference**2))
    return difference - half, difference + half
