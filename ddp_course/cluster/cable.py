"""Limit a cable's speed by a token bucket at both of its ends (`man tc-tbf`)."""

import re

from ddp_course.base.errors import InputError

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
# The size of the bucket, in seconds at the cable's speed. With more, messages of some kilobytes are not limited at all;
# with less, the timer that refills the bucket is too coarse, and a fast cable is slower than its limit.
BURST_SECONDS = 0.0005
SMALLEST_BURST = 1600  # bytes: room for one packet with its headers
QUEUE = "200ms"  # packets that would wait longer in the queue are dropped


def bits_per_second(rate: str) -> float:
    """The bits per second of "200mbit". Raises InputError if it cannot be parsed."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kmg]?)bit", str(rate).strip().lower())
    if not match or not float(match[1]):
        raise InputError(
            f'the speed of a cable is a number of bits per second such as "200mbit" or "1gbit"; got {rate!r}'
        )
    return float(match[1]) * UNITS[match[2]]


def limit(rate: str | None) -> list[str]:
    """The words after `tc qdisc replace dev ... root` that limit a cable to `rate`; [] for None, no limit."""
    if rate is None:
        return []
    bits = bits_per_second(rate)
    burst = max(SMALLEST_BURST, round(bits / 8 * BURST_SECONDS))
    return ["tbf", "rate", f"{bits:.0f}bit", "burst", str(burst), "latency", QUEUE]
