"""95 % confidence intervals and significance tests for four kinds of comparison, without scipy.

Runs of several seeds: `t_interval`. A share of independent trials: `wilson_interval`. Items that come in clusters, such
as pairs from files: `cluster_interval`. Two judges of the same trials: the mean of their differences, or
`mcnemar`. Several claims at once: `holm`.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np


class Estimate(NamedTuple):
    """A mean, the ends of its 95 % interval, and the p-value of the null hypothesis that the true mean is 0."""

    mean: float
    low: float
    high: float
    p: float

    def __format__(self, spec: str) -> str:
        return f"{self.mean:{spec}} ({self.low:{spec}} to {self.high:{spec}})"


def t_interval(values: Sequence[float]) -> Estimate:
    """The mean of independent values, such as of runs that differ only in their seed, with Student's t.

    There must be two values or more.
    """
    mean, degrees = fmean(values), len(values) - 1
    standard_error = stdev(values) / len(values) ** 0.5
    half = student_quantile(degrees) * standard_error
    p = student_p(mean / standard_error, degrees) if standard_error else float(mean == 0)
    return Estimate(mean, mean - half, mean + half, p)


def student_p(t: float, degrees: int) -> float:
    """The two-sided p-value of Student's t, with `degrees` of freedom.

    Abramowitz and Stegun (1964), 26.7.3 and 26.7.4.
    """
    angle = math.atan2(abs(t), degrees**0.5)
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = degrees % 2
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for step in range(1 + odd, degrees, 2):
        total += term
        term *= cosine**2 * step / (step + 1)
    return 1 - ((angle + sine * total) * 2 / math.pi if odd else sine * total)


def student_quantile(degrees: int) -> float:
    """The t whose two-sided p-value is 0.05, found by bisection."""
    low, high = 0.0, 1e6
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if student_p(middle, degrees) > 0.05 else (low, middle)
    return high


def wilson_interval(successes: float, count: float) -> tuple[float, float]:
    """The ends (low, high) of the interval of the share of successes among `count` independent trials.

    Wilson, "Probable inference, the law of succession, and statistical inference" (1927). Unlike share ± z * standard
    error it stays within 0 and 1, and covers about 95 % for few trials, too.
    """
    z = 1.96  # 95 % of a normal distribution lie within 1.96 standard deviations
    share, spread = successes / count, z**2 / count
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def cluster_interval(values: Sequence[float], clusters: Sequence[Hashable], draws: int = 4000) -> Estimate:
    """The mean over items, where items of one cluster may be alike: a bootstrap that draws whole clusters."""
    index_of = {cluster: index for index, cluster in enumerate(dict.fromkeys(clusters))}
    indices = np.array([index_of[cluster] for cluster in clusters])
    return resampled(np.bincount(indices, np.asarray(values, dtype=float)), np.bincount(indices), draws)


def resampled(sums: Sequence[float], counts: Sequence[float], draws: int = 4000) -> Estimate:
    """`cluster_interval` from each cluster's sum and number of items, with a fixed seed.

    The standard deviation of a bootstrap over n clusters is too small by the factor sqrt((n - 1) / n): it is corrected.
    """
    sums, counts = np.asarray(sums, dtype=float), np.asarray(counts, dtype=float)
    chosen = np.random.default_rng(1).integers(len(sums), size=(draws, len(sums)))
    mean = sums.sum() / counts.sum()
    drawn = sums[chosen].sum(1) / counts[chosen].sum(1)
    drawn = mean + (drawn - mean) * (len(sums) / max(1, len(sums) - 1)) ** 0.5
    low, high = np.quantile(drawn, (0.025, 0.975))
    p = 2 * (1 + min((drawn <= 0).sum(), (drawn >= 0).sum())) / (draws + 1)
    return Estimate(float(mean), float(low), float(high), min(1.0, float(p)))


def mcnemar(gained: int, lost: int) -> float:
    """The exact p-value of the null hypothesis that two judges are right equally often.

    gained, lost: the trials that only the one judge gets right, and those that only the other does.
    """
    differ = gained + lost
    return min(1.0, 2 * sum(math.comb(differ, k) for k in range(min(gained, lost) + 1)) / 2**differ)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """p-values corrected for testing several claims at once (Holm, 1979): each may then be compared with 0.05."""
    adjusted, largest = {}, 0.0
    for rank, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p_values}
