"""15.2: buckets for a cable, from what each rank has measured for itself; judged by DDP's schedule."""

import random
from itertools import accumulate

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong
from ddp_course.plan.schedule import Compute, Gradient, buckets, simulate

FUNCTION = "plan"
FASTER = 0.90  # of the default's seconds, at most


def gradients(layers, width, vocabulary=0):
    """{name: bytes} of a transformer, in the order of model.parameters()."""
    sizes = {"embedding": vocabulary * width} if vocabulary else {}
    for layer in range(layers):
        sizes |= {f"{layer}.attention": 4 * width**2, f"{layer}.up": 4 * width**2, f"{layer}.down": 4 * width**2}
    return {name: 4 * size for name, size in (sizes | {"norm": width}).items()}


def even(sizes, backward):
    """{name: seconds until it is ready}, in backward's order, each taking its share of the bytes."""
    order, whole = list(reversed(sizes)), sum(sizes.values())
    return {
        name: backward * so_far / whole
        for name, so_far in zip(order, accumulate(sizes[name] for name in order), strict=True)
    }


def late(sizes, backward, begin, end):
    """The same for a rank that is `begin` seconds later at first, and `end` seconds at last."""
    return {name: at + begin + (end - begin) * at / backward for name, at in even(sizes, backward).items()}


SMALL, WIDE, DEEP = gradients(4, 384), gradients(3, 768, 4000), gradients(12, 256)
CABLES = {  # sizes, seconds until ready by rank, latency, bytes per second
    "both ranks alike, and parameters in another order than their use": (
        {name: SMALL[name] for name in sorted(SMALL)},
        [even(SMALL, 0.1)] * 2,
        0.001,
        300e6,
    ),
    "a quick cable": (WIDE, [even(WIDE, 0.1), late(WIDE, 0.1, 0.003, 0.003)], 0.0005, 1e9),
    "a long way": (DEEP, [even(DEEP, 0.03), late(DEEP, 0.03, 0.001, 0.001)], 0.06, 10e9),
    "rank 1 begins late": (DEEP, [even(DEEP, 0.1), late(DEEP, 0.1, 0.09, 0.0)], 0.015, 2e9),
    "rank 0 begins late, and rank 1 ends last": (DEEP, [late(DEEP, 0.1, 0.09, -0.001), even(DEEP, 0.1)], 0.015, 2e9),
    "rank 1 computes slowly": (SMALL, [even(SMALL, 0.02), late(SMALL, 0.02, 0.0, 0.08)], 0.005, 300e6),
}


def shuffled(times, seed):
    """In no order, as a dict is that threads have filled."""
    names = list(times)
    random.Random(seed).shuffle(names)
    return {name: times[name] for name in names}


def on_both(given):
    sizes, ready, latency, speed = CABLES[given]
    return Call([(sizes, shuffled(one, f"{given} {rank}"), latency, speed) for rank, one in enumerate(ready)], given)


JOBS = [Job(2, FUNCTION, tuple(map(on_both, CABLES)))]


def each_gradient_is_in_one_bucket(records):
    """plan returns lists of names, none of them empty, in which each name stands once."""
    for case in cases(records):
        names = case.args[0][0]
        for rank, found in enumerate(case.results):
            if not isinstance(found, list) or not all(isinstance(bucket, list) and bucket for bucket in found):
                raise Wrong(
                    f"{case.given}: {FUNCTION} returned {shown(found)} on rank {rank}",
                    "the return value: a list of buckets, each a list of names",
                )
            there = [name for bucket in found for name in bucket]
            for name in [*names, *there]:
                if there.count(name) != 1 or name not in names:
                    raise Wrong(
                        f"{case.given}: {name!r} stands in the plan {there.count(name)} times on rank {rank}",
                        "where a bucket is closed, and what is in the last one",
                    )
    return "each gradient is in one bucket"


def buckets_follow_backward(records):
    """The buckets, and the names in each, are in the order in which backward makes the gradients."""
    for case in cases(records):
        for rank, found in enumerate(case.results):
            ready = case.args[rank][1]
            there = [name for bucket in found for name in bucket]
            right = sorted(ready, key=ready.get)
            if there != right:
                at = next(n for n, pair in enumerate(zip(there, right, strict=True)) if len(set(pair)) > 1)
                look = "the order by time: a model may use its parameters in another order than it holds them"
                if there == list(case.args[rank][0]):
                    look = "sizes is in the order of forward; backward goes the other way"
                raise Wrong(
                    f"{case.given}: gradient {at} of rank {rank}'s plan is {there[at]!r}; backward makes "
                    f"{right[at]!r} there",
                    look,
                )
    return "the buckets are in backward's order"


def all_ranks_agree(records):
    """Every rank returns the same plan."""
    for case in cases(records):
        one, other = case.results
        if one != other:
            bucket = next(n for n in range(len(one)) if one[n : n + 1] != other[n : n + 1])
            raise Wrong(
                f"{case.given}: bucket {bucket} holds {size(one, bucket)} on rank 0 and {size(other, bucket)} "
                "on rank 1",
                "what each rank plans from: its own times, or what both know?",
            )
    return "both ranks plan the same buckets"


def a_tenth_faster_than_the_default(records):
    """From the begin of backward until the last message is over it takes at most 90 % of the default's seconds."""
    gained = []
    for case in cases(records):
        sizes, ready, *cable = CABLES[case.given]
        last, plan = slowest(ready), case.results[0]
        taken, usual = seconds(plan, sizes, last, *cable), seconds(default(sizes, last), sizes, last, *cable)
        if taken > FASTER * usual:
            raise Wrong(
                f"{case.given}: the last message is over after {1e3 * taken:.0f} ms with {len(plan)} "
                f"bucket{'s' * (len(plan) > 1)}, after {1e3 * usual:.0f} ms with the default",
                advice(plan, sizes, last, *cable),
            )
        gained.append(1 - taken / usual)
    return f"{min(gained):.0%} to {max(gained):.0%} faster than the default on {len(CABLES)} cables"


CHECKS = [each_gradient_is_in_one_bucket, buckets_follow_backward, all_ranks_agree, a_tenth_faster_than_the_default]


def slowest(ready):
    """{name: seconds until the last rank has it}"""
    return {name: max(rank[name] for rank in ready) for name in ready[0]}


def gradient_buckets(plan, sizes, ready):
    """The plan as the simulator takes it: the cost of a bucket is the time from the one before it."""
    ends = [0.0, *(max(ready[name] for name in bucket) for bucket in plan)]
    pairs = zip(plan, ends, ends[1:], strict=False)
    return [Gradient(sum(map(sizes.get, bucket)), end - begin) for bucket, begin, end in pairs]


def seconds(plan, sizes, ready, latency, speed):
    """From the begin of backward until the last message is over, by the simulator."""
    several = gradient_buckets(plan, sizes, ready)
    backward = sum(one.cost for one in several)
    return simulate(Compute(0.0, backward), several, lambda size: latency + size / speed, bucket_mib=1e-9).seconds


def default(sizes, ready):
    """DDP's own plan."""
    rest = iter(sorted(ready, key=ready.get))
    counts = [int(one.cost) for one in buckets([Gradient(sizes[name], 1) for name in sorted(ready, key=ready.get)])]
    return [[next(rest) for _ in range(count)] for count in counts]


def advice(plan, sizes, ready, latency, speed):
    """Where a plan that is too slow loses its time."""
    if plan == default(sizes, ready):
        return "these are the default's own buckets: what would another limit do?"
    several = gradient_buckets(plan, sizes, ready)
    sent = sum(sizes.values()) / speed
    if len(plan) * latency > sent and len(plan) > 1:
        return "every bucket pays the latency; is the last rank ready early enough for so many?"
    if several[0].cost > 0.5 * max(ready.values()):
        return "the cable is idle until the first bucket is full"
    return "the cable waits for the last rank: whose times is the plan made from?"


def size(plan, number):
    return f"{len(plan[number])} gradients" if number < len(plan) else "nothing"


def shown(found):
    text = repr(found)
    return text if len(text) < 60 else f"{text[:56]} ..."
