"""14.3: buckets for one model on one cable, judged by the simulator of DDP's schedule (plan/schedule.py)."""

import random

from ddp_course.grader.vocabulary import check, expect, function_job, show
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


def random_model(seed):
    """Random gradients on a random cable: an entry of MODELS."""
    rng = random.Random(f"14.3 {seed}")
    gradients = [(rng.choice([0.01, 0.5, 1, 4]) * rng.randint(1, 8) * MIB, rng.uniform(0.1, 4)) for _ in range(25)]
    return gradients, rng.uniform(0.05, 0.3), rng.uniform(0.0005, 0.01), rng.uniform(2e8, 2e9)


MODELS |= {f"drawn, {seed}": random_model(seed) for seed in range(1, 6)}
JOBS = [function_job(1, FUNCTION, MODELS)]


@check("each gradient is in one bucket, in backward's order", begin="{scenario}: ")
def every_gradient_is_in_one_bucket(case):
    [counts], gradient_count = case.results, len(case.args[0][0])
    expect(
        isinstance(counts, list)
        and all(type(count) is int and count > 0 for count in counts)
        and sum(counts) == gradient_count,
        f"{FUNCTION} returned {show(counts)} for {gradient_count} gradients",
        "the numbers of gradients of the buckets, in order: each at least 1, adding up to all",
    )


@check(f"no slower than the default for {len(MODELS)} models and links", begin="{scenario}: ")
def no_slower_than_the_default(case):
    planned, default = planned_seconds(case), default_seconds(case)
    expect(
        planned <= default * (1 + 1e-9),
        f"a step takes {ms(planned)} with {len(case.results[0])} buckets, and {ms(default)} with the default",
        "every message pays the latency; a message that waits for all gradients hides nothing",
    )


@check(
    lambda gained: f"up to {max(gained):.0%} shorter steps than with the default, and no plan is faster by 0.5 %",
    begin="{scenario}: ",
)
def as_fast_as_can_be(case):
    planned, best = planned_seconds(case), best_seconds(*case.args[0])
    expect(
        planned <= WITHIN * best,
        f"a step takes {ms(planned)} with {len(case.results[0])} buckets; {ms(best)} are possible",
        "where is the link idle while gradients are ready, and where does it pay latency for nothing?",
    )
    return 1 - planned / default_seconds(case)


def planned_seconds(case):
    """Seconds of a step with the buckets of the answer."""
    remaining = iter(case.args[0][0])
    buckets = [[next(remaining) for _ in range(count)] for count in case.results[0]]
    merged = [Gradient(*map(sum, zip(*bucket, strict=True))) for bucket in buckets]
    return seconds(case, merged, bucket_mib=1e-9)  # so small a limit that each merged gradient fills a bucket


def default_seconds(case):
    """Seconds of a step with DDP's default buckets."""
    return seconds(case, [Gradient(*gradient) for gradient in case.args[0][0]])


def seconds(case, gradients, bucket_mib=None):
    """Seconds of a step by the simulator; forward takes half as long as backward."""
    _, backward, latency, speed = case.args[0]
    compute = Compute(backward / 2, backward)
    return simulate(compute, gradients, lambda size: latency + size / speed, bucket_mib=bucket_mib).seconds


def best_seconds(gradients, backward, latency, speed):
    """Seconds of a step with the best of all plans: forward, then until backward and the last message are over."""
    total_cost, computed = sum(cost for _, cost in gradients), 0.0
    sent, free = [0.0], [0.0]  # of the first n gradients: their bytes, and the earliest end of their last message
    for size, cost in gradients:
        computed += cost
        sent.append(sent[-1] + size)
        ready = backward * computed / total_cost
        # The last of their buckets begins after the first m gradients.
        free.append(min(max(free[m], ready) + latency + (sent[-1] - sent[m]) / speed for m in range(len(free))))
    return backward / 2 + max(backward, free[-1])


def ms(duration):
    return f"{1e3 * duration:.1f} ms"
