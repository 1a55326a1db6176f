"""Numbers that are not known exactly: the range of an input, and the interval of a result over draws of the inputs."""

import math
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddp_course.base.errors import InputError


@dataclass(frozen=True)
class Range:
    """The ends of the range in which a number lies; they are equal once it is measured."""

    low: float
    high: float

    def __post_init__(self):
        if not 0 <= self.low <= self.high < float("inf"):
            raise InputError(f"a range goes from its low to its high end, both from 0 up, got {self.low}-{self.high}")

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2

    @property
    def known(self) -> bool:
        return self.low == self.high

    def at(self, share: float) -> float:
        """The number at this share of the way from `low` to `high`."""
        return self.low + share * (self.high - self.low)


def draw(ranges: Mapping[str, Range], draws: int) -> Iterator[dict[str, float]]:
    """Yield a number from each range, `draws` times; once if all are known. The same numbers in each call."""
    generator = random.Random(0)
    for _ in range(1 if all(range_.known for range_ in ranges.values()) else draws):
        yield {name: range_.at(generator.random()) for name, range_ in ranges.items()}


@dataclass(frozen=True)
class Interval:
    """A median, and the ends of the interval with 90 % of the values."""

    low: float
    middle: float
    high: float

    @property
    def width(self) -> float:
        """The logarithm of the ratio of the ends."""
        return math.log(self.high / self.low)


def interval(values: Sequence[float]) -> Interval:
    """The median, the 5th and the 95th percentile of the values."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return Interval(ordered[round(0.05 * last)], statistics.median(ordered), ordered[round(0.95 * last)])
