"""The α-β model of a link, and the fit of both numbers to measured all-reduces.

A message of S bytes takes α + S / β: α seconds to get it under way, then the bytes at β bytes per second. A ring
all-reduce over n ranks is 2(n - 1) such messages of S / n bytes each, so its time is 2(n - 1) α + 2(n - 1)/n S / β.
"""

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ddp_course.base.errors import InputError
from ddp_course.plan.uncertainty import interval

SMALL, LARGE = 4 * 2**10, 256 * 2**10  # bytes: all-reduces up to SMALL determine α, from LARGE up β
DRAWS = 200  # bootstrap samples


@dataclass(frozen=True)
class Link:
    """α in seconds per message, β in bytes per second; a fit adds a 90 % interval of β."""

    alpha: float
    beta: float
    beta_interval: tuple[float, float] = field(default=(0.0, 0.0), compare=False)

    def __post_init__(self):
        if not (self.alpha >= 0 and 0 < self.beta < float("inf")):
            raise InputError(
                f"a link needs a latency from 0 s up and a bandwidth above 0 B/s, got {self.alpha} s and "
                f"{self.beta} B/s"
            )


def fit(seconds: Mapping[int, Sequence[float]], ranks: int) -> Link:
    """α from the small all-reduces, β from the large ones, with a 90 % bootstrap interval of β.

    seconds: bytes of an all-reduce over `ranks` ranks -> its measured times, of which the median counts. Sizes between
    4 and 256 KiB are not used: there both numbers matter, and so does the burst that a throttled cable lets pass.
    Raises InputError if a size is missing, or if large all-reduces took no longer than small ones.
    """
    if ranks < 2:
        raise InputError(f"a link has two ends: the times must come from at least 2 ranks, got {ranks}")
    small = {size: times for size, times in seconds.items() if size <= SMALL}
    large = {size: times for size, times in seconds.items() if size >= LARGE}
    if not small or not large:
        raise InputError(
            f"a fit needs messages of at most {SMALL:,} bytes for α and of at least {LARGE:,} for β, got "
            f"{sorted(seconds)}"
        )
    messages, generator = 2 * (ranks - 1), random.Random(0)

    def estimate(sample: Callable[[Sequence[float]], list[float]]) -> tuple[float, float]:
        alpha = min(statistics.median(sample(times)) for times in small.values()) / messages
        slopes = [(statistics.median(sample(times)) - messages * alpha) / size for size, times in large.items()]
        if statistics.median(slopes) <= 0:
            raise InputError("large messages took no longer than small ones: measure larger ones")
        return alpha, messages / ranks / statistics.median(slopes)

    def resample(times: Sequence[float]) -> list[float]:
        return generator.choices(times, k=len(times))

    beta = interval([estimate(resample)[1] for _ in range(DRAWS)])
    return Link(*estimate(list), beta_interval=(beta.low, beta.high))


def fit_all_sizes(seconds: Mapping[int, Sequence[float]], ranks: int) -> Link:
    """α and β from all sizes, by least squares of the relative errors. Notebook 15 shows its errors."""
    import numpy  # not at the top, as the commands run without numpy

    medians = [statistics.median(times) for times in seconds.values()]
    slope, start = numpy.polyfit(list(seconds), medians, 1, w=[1 / median for median in medians])
    messages = 2 * (ranks - 1)
    return Link(max(0.0, start / messages), messages / ranks / slope)
