"""14.3: buckets for one model on one cable, judged by the simulator of DDP's schedule (plan/schedule.py)."""

import random

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong
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
JOBS = [Job(1, FUNCTION, tuple(Call([arguments], given) for given, arguments in MODELS.items()))]


def every_gradient_is_in_one_bucket(records):
    """The plan is a list of numbers of gradients, from the first that backward makes to the last."""
    for case in cases(records):
        [found], number = case.results, len(case.args[0][0])
        counts = isinstance(found, list) and all(type(one) is int and one > 0 for one in found)
        if not counts or sum(found) != number:
            look = "the numbers of gradients of the buckets, in order: each at least 1, together all"
            raise Wrong(f"{case.given}: {FUNCTION} returned {shown(found)} for {number} gradients", look)
    return "each gradient is in one bucket, in backward's order"


def no_slower_than_the_default(records):
    """A step with the plan is no longer than one with DDP's default buckets."""
    for case, taken, default, _ in seconds(records):
        if taken > default * (1 + 1e-9):
            look = "every message pays the latency; a message that waits for all gradients hides nothing"
            raise Wrong(
                f"{case.given}: a step takes {said(taken)} with {len(case.results[0])} buckets, and "
                f"{said(default)} with the default",
                look,
            )
    return f"no slower than the default for {len(MODELS)} models and cables"


def as_fast_as_can_be(records):
    """A step takes at most 0.5 % longer than with the best plan of all."""
    gained = []
    for case, taken, default, best in seconds(records):
        if taken > WITHIN * best:
            look = "where is the link idle while gradients are ready, and where does it pay latency for nothing?"
            raise Wrong(
                f"{case.given}: a step takes {said(taken)} with {len(case.results[0])} buckets; "
                f"{said(best)} are possible",
                look,
            )
        gained.append(1 - taken / default)
    return f"up to {max(gained):.0%} shorter steps than with the default, and no plan is faster by 0.5 %"


CHECKS = [every_gradient_is_in_one_bucket, no_slower_than_the_default, as_fast_as_can_be]


def seconds(records):
    """Each case with the seconds of a step as the answer plans it, with DDP's default, and with the best plan."""
    for case in cases(records):
        gradients, backward, latency, speed = case.args[0]
        link = lambda size, latency=latency, speed=speed: latency + size / speed  # noqa: E731
        compute, alone = Compute(backward / 2, backward), [Gradient(*one) for one in gradients]
        buckets = merged(gradients, case.results[0])
        taken = simulate(compute, buckets, link, bucket_mib=1e-9).seconds  # each of them is above such a limit
        yield case, taken, simulate(compute, alone, link).seconds, backward / 2 + earliest(*case.args[0])


def merged(gradients, counts):
    rest = iter(gradients)
    several = [[next(rest) for _ in range(count)] for count in counts]
    return [Gradient(sum(size for size, _ in one), sum(cost for _, cost in one)) for one in several]


def earliest(gradients, backward, latency, speed):
    """Seconds from the begin of backward until the last message can be over at the earliest."""
    whole, free, computed, end = sum(cost for _, cost in gradients), [0.0], 0.0, [0.0]
    for size, cost in gradients:
        computed += cost
        end.append(end[-1] + size)
        ready = backward * computed / whole
        last = len(end) - 1
        free.append(min(max(free[m], ready) + latency + (end[last] - end[m]) / speed for m in range(last)))
    return max(backward, free[-1])


def said(taken):
    return f"{1e3 * taken:.1f} ms"


def shown(found):
    text = repr(found)
    return text if len(text) < 60 else f"{text[:56]} ..."
