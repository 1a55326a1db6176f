"""15.3: a function that fits latency and bandwidth of a cable to times of all-reduces, some of which are wrong."""

import math
import random
import statistics

from ddp_course.grader.vocabulary import Mistake, Wrong, check, driver_job, expect, numbers, recognised
from ddp_course.plan.link import LARGE, SMALL

from .given import REPEATS, SIZES

FUNCTION, WITHIN = "fit", 0.10
KIB, MIB = 2**10, 2**20
CABLES = {  # ranks, latency, bytes per second, sizes, noise, number of outliers per size besides the first time
    "a clean measurement": (2, 100e-6, 12.5e6, SIZES, 0.0, 0),
    "a cable of 100 Mbit/s": (2, 100e-6, 12.5e6, SIZES, 0.02, 7),
    "four machines, 1 Gbit/s": (4, 60e-6, 125e6, SIZES, 0.02, 7),
    "eight machines, a long way": (8, 3e-3, 500e6, SIZES, 0.01, 7),
    "a long way, 10 Gbit/s": (2, 10e-3, 1.25e9, [*SIZES, 64 * MIB], 0.005, 11),
    "three machines, few sizes": (3, 200e-6, 25e6, [256, 32 * KIB, 512 * KIB, 8 * MIB], 0.02, 7),
}
TYPICAL = "which of the times of one size can be trusted"


def ring(size, ranks, latency, speed):
    """Seconds of an all-reduce. Bytes between SMALL and LARGE take no time: the cable's buffer takes them at once."""
    return 2 * (ranks - 1) * (latency + (0 if SMALL < size < LARGE else size) / ranks / speed)


def measurement(scenario):
    """({bytes: times}, ranks). With noise, the first of each size warms up, and outliers are too long or too short."""
    ranks, latency, speed, sizes, noise, outliers = CABLES[scenario]
    rng, pairs = random.Random(f"15.3 {scenario}"), []
    for size in sizes:
        right = ring(size, ranks, latency, speed)
        times = [right * (1 + rng.gauss(0, noise)) for _ in range(REPEATS)]
        if noise:
            times[0] *= 8
            for number in rng.sample(range(1, REPEATS), outliers):
                times[number] *= rng.choice([3.0, 10.0, 40.0, 0.4, 0.6])
        pairs.append((size, times))
    random.Random(f"{scenario} order").shuffle(pairs)
    return dict(pairs), ranks


JOBS = [driver_job(1, FUNCTION, {scenario: measurement(scenario) for scenario in CABLES})]


@check("the fit is written by hand", begin="")
def fitted_by_hand(case):
    expect(
        not case.results[0]["ready_made"],
        f"{FUNCTION} has loaded ddp_course.plan",
        "the imports: the fit is yours to write",
    )


@check("each fit is a latency and a bandwidth", begin="{scenario}: ")
def returns_two_numbers(case):
    returned, fit = case.results[0]["fit"], fit_of(case)
    expect(
        fit and len(fit) == 2 and all(0 < value < math.inf for value in fit),
        f"{FUNCTION} returned {returned!r}",
        "the return value: seconds per message, then bytes per second, both above 0",
    )


@check(
    lambda errors: f"the bandwidth of {len(CABLES)} cables is found, with errors of at most {max(errors):.1%}",
    begin="{scenario}: ",
)
def the_bandwidth_is_right(case):
    (_, bandwidth), (_, _, right, *_) = fit_of(case), CABLES[case.scenario]
    error = abs(bandwidth / right - 1)
    if error > WITHIN:
        otherwise = "the sizes from 256 KiB up, and their typical times"
        words, look_at = recognised(bandwidth, bandwidth_mistakes(*case.args[0], right), otherwise, rel_tol=0.02)
        raise Wrong(f"{FUNCTION} found {bandwidth / 1e6:.4g} MB/s, the cable has {right / 1e6:.4g}{words}", look_at)
    return error


@check(
    lambda errors: f"the latency of {len(CABLES)} cables is found, with errors of at most {max(errors):.1%}",
    begin="{scenario}: ",
)
def the_latency_is_right(case):
    (latency, _), (_, right, *_) = fit_of(case), CABLES[case.scenario]
    error = abs(latency / right - 1)
    if error > WITHIN:
        otherwise = "the smallest size, and its typical time"
        words, look_at = recognised(latency, latency_mistakes(*case.args[0]), otherwise, rel_tol=0.02)
        raise Wrong(
            f"{FUNCTION} found {1e6 * latency:.4g} µs per message, the cable has {1e6 * right:.4g}{words}", look_at
        )
    return error


def fit_of(case):
    """The numbers that were returned; None if the answer returned anything else."""
    returned = case.results[0]["fit"]
    return numbers(list(returned)) if isinstance(returned, list | tuple) else None


def bandwidth_mistakes(seconds, ranks, speed):
    """The known mistakes, each with its bandwidth."""
    low, high = min(size for size in seconds if size >= LARGE), max(seconds)
    share = 2 * (ranks - 1) / ranks  # of the bytes of an all-reduce, what a rank sends

    def by_slope(pick):
        return share * (high - low) / (pick(seconds[high]) - pick(seconds[low]))

    return [
        Mistake(
            "as if the latency were bytes",
            share * high / statistics.median(seconds[high]),
            "what a large all-reduce pays besides its bytes",
        ),
        Mistake("in bits", 8 * speed, "the unit: bytes per second"),
        Mistake("as if each rank sent all bytes once", speed / share, "how many bytes a rank sends in a ring"),
        Mistake("from the mean of the times", by_slope(statistics.mean), TYPICAL),
        Mistake("from the shortest times", by_slope(min), TYPICAL),
    ]


def latency_mistakes(seconds, ranks):
    """The known mistakes, each with its latency."""
    smallest, messages = min(seconds), 2 * (ranks - 1)
    typical = statistics.median(seconds[smallest])
    typical_of_small = [statistics.median(times) for size, times in seconds.items() if size <= SMALL]
    return [
        Mistake("the time of a whole all-reduce", typical, "how many messages an all-reduce sends one after the other"),
        Mistake("in microseconds", 1e6 * typical / messages, "the unit: seconds"),
        Mistake("from the mean of the times", statistics.mean(seconds[smallest]) / messages, TYPICAL),
        Mistake("from the shortest time", min(seconds[smallest]) / messages, TYPICAL),
        Mistake(
            "with the bytes of 4 KiB in it", max(typical_of_small) / messages, "which sizes pay for their bytes too"
        ),
    ]
