"""Intervals and tests for four kinds of comparison, for 95 of 100 experiments, without scipy.

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
    """A mean, the ends of its interval, and the p-value of the claim that the true mean is 0."""

    mean: float
    low: float
    high: float
    p: float

    def __format__(self, spec: str) -> str:
        return f"{self.mean:{spec}} ({self.low:{spec}} to {self.high:{spec}})"


def t_interval(values: Sequence[float]) -> Estimate:
    """The mean over runs that differ in their seed alone, with Student's t; at least two values."""
    mean, error, freedom = fmean(values), stdev(values) / len(values) ** 0.5, len(values) - 1
    half = student_quantile(freedom) * error
    p = student_p(mean / error, freedom) if error else float(mean == 0)
    return Estimate(mean, mean - half, mean + half, p)


def student_p(t: float, freedom: int) -> float:
    """How often chance alone gives at least |t|: Abramowitz and Stegun (1964), 26.7.3 and 26.7.4."""
    angle = math.atan2(abs(t), freedom**0.5)
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for step in range(1 + odd, freedom, 2):
        total += term
        term *= cosine**2 * step / (step + 1)
    return 1 - ((angle + sine * total) * 2 / math.pi if odd else sine * total)


def student_quantile(freedom: int, outside: float = 0.05) -> float:
    """The t that chance alone exceeds, on either side together, in the share `outside`; found by bisection."""
    low, high = 0.0, 1e6
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if student_p(middle, freedom) > outside else (low, middle)
    return high


def wilson_interval(successes: float, count: float, z: float = 1.96) -> tuple[float, float]:
    """The interval of a share of independent trials, between 0 and 1.

    Wilson, "Probable inference, the law of succession, and statistical inference" (1927). Unlike share ± z * standard
    error it stays within 0 and 1 and is honest for few trials.
    """
    share, spread = successes / count, z**2 / count
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def cluster_interval(values: Sequence[float], clusters: Sequence[Hashable], draws: int = 4000) -> Estimate:
    """The mean over items of which those of one cluster are alike: a bootstrap that draws whole clusters."""
    number = {cluster: index for index, cluster in enumerate(dict.fromkeys(clusters))}
    places = np.array([number[cluster] for cluster in clusters])
    return resampled(np.bincount(places, np.asarray(values, dtype=float)), np.bincount(places), draws)


def resampled(sums: Sequence[float], counts: Sequence[float], draws: int = 4000) -> Estimate:
    """The same from each cluster's sum and number of items; the random numbers are always the same.

    Drawing n of n clusters varies too little by the factor sqrt((n - 1) / n), which is made up for.
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
    """The exact p-value of the claim that two judges are equally good, from the trials on which they differ."""
    differ = gained + lost
    return min(1.0, 2 * sum(math.comb(differ, k) for k in range(min(gained, lost) + 1)) / 2**differ)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """p-values that stay honest when several claims are tested at once (Holm, 1979): compare each with 0.05."""
    adjusted, largest = {}, 0.0
    for rank, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p_values}
