"""14.3: buckets for one model on one cable, judged by the simulator of DDP's schedule (plan/schedule.py)."""

import random

from ddp_course.grader.vocabulary import Call, Job, check, expect, show
from ddp_course.plan.schedule import MIB, Compute, Gradient, simulate

FUNCTION = "plan"
WITHIN = 1.005  # times the fastest step


def model(layers, width, vocabulary, even=False):
    """(bytes, cost) of the gradients of a transformer, in backward's order."""
    layer = [4 * width**2, 4 * width**2, width**2, 3 * width**2]
    sizes = [width, *layer * layers, vocabulary * width]
    return [(4 * size, 1.0 if even else float(size)) for size in sizes]


SMALL, BASE = model(6, 256, 8000), model(12, 768, 32000)
MODELS = {  # gradients, seconds of backward, seconds of latency, bytes per second
    "a small model, 1 Gb/s": (SMALL, 0.060, 0.0005, 125e6),
    "a small model, latency of 5 ms": (SMALL, 0.060, 0.005, 250e6),
    "a small model, latency of 40 ms": (SMALL, 0.060, 0.040, 1e9),
    "a base model, 10 Gb/s": (BASE, 0.300, 0.0002, 1.25e9),
    "a base model, 100 Mb/s": (BASE, 0.300, 0.001, 12.5e6),
    "a base model, 200 Gb/s": (BASE, 0.300, 0.0001, 25e9),
    "equal costs": (model(8, 384, 16000, even=True), 0.100, 0.002, 500e6),
    "the largest gradient comes first": (model(6, 256, 8000)[::-1], 0.060, 0.002, 250e6),
    "one gradient": ([(4 * MIB, 1.0)], 0.010, 0.001, 1e9),
}


def drawn(seed):
    luck = random.Random(f"14.3 {seed}")
    gradients = [(luck.choice([0.01, 0.5, 1, 4]) * luck.randint(1, 8) * MIB, luck.uniform(0.1, 4)) for _ in range(25)]
    return gradients, luck.uniform(0.05, 0.3), luck.uniform(0.0005, 0.01), luck.uniform(2e8, 2e9)


MODELS |= {f"drawn, {seed}": drawn(seed) for seed in range(1, 6)}
JOBS = [Job(1, FUNCTION, tuple(Call([arguments], scenario) for scenario, arguments in MODELS.items()))]


@check("each gradient is in one bucket, in backward's order", begin="{scenario}: ")
def every_gradient_is_in_one_bucket(case):
    [counts], number = case.results, len(case.args[0][0])
    whole = isinstance(counts, list) and all(type(count) is int and count > 0 for count in counts)
    expect(
        whole and sum(counts) == number,
        f"{FUNCTION} returned {show(counts)} for {number} gradients",
        "the numbers of gradients of the buckets, in order: each at least 1, together all",
    )


@check(f"no slower than the default for {len(MODELS)} models and cables", begin="{scenario}: ")
def no_slower_than_the_default(case):
    taken, default = planned_seconds(case), default_seconds(case)
    expect(
        taken <= default * (1 + 1e-9),
        f"a step takes {ms(taken)} with {len(case.results[0])} buckets, and {ms(default)} with the default",
        "every message pays the latency; a message that waits for all gradients hides nothing",
    )


@check(
    lambda gained: f"up to {max(gained):.0%} shorter steps than with the default, and no plan is faster by 0.5 %",
    begin="{scenario}: ",
)
def as_fast_as_can_be(case):
    taken, best = planned_seconds(case), best_seconds(*case.args[0])
    expect(
        taken <= WITHIN * best,
        f"a step takes {ms(taken)} with {len(case.results[0])} buckets; {ms(best)} are possible",
        "where is the link idle while gradients are ready, and where does it pay latency for nothing?",
    )
    return 1 - taken / default_seconds(case)


def planned_seconds(case):
    """Seconds of a step with the buckets of the answer."""
    rest = iter(case.args[0][0])
    buckets = [[next(rest) for _ in range(count)] for count in case.results[0]]
    merged = [Gradient(*map(sum, zip(*bucket, strict=True))) for bucket in buckets]
    return seconds(case, merged, bucket_mib=1e-9)  # each of them is above such a limit


def default_seconds(case):
    return seconds(case, [Gradient(*gradient) for gradient in case.args[0][0]])


def seconds(case, gradients, **settings):
    _, backward, latency, speed = case.args[0]
    compute = Compute(backward / 2, backward)
    return simulate(compute, gradients, lambda size: latency + size / speed, **settings).seconds


def best_seconds(gradients, backward, latency, speed):
    """Seconds of a step that no plan can go below: forward, and until the last message can be over."""
    whole, free, computed, end = sum(cost for _, cost in gradients), [0.0], 0.0, [0.0]
    for size, cost in gradients:
        computed += cost
        end.append(end[-1] + size)
        ready = backward * computed / whole
        last = len(end) - 1
        free.append(min(max(free[m], ready) + latency + (end[last] - end[m]) / speed for m in range(last)))
    return backward / 2 + max(backward, free[-1])


def ms(taken):
    return f"{1e3 * taken:.1f} ms"
