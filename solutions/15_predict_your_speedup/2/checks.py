"""15.2: buckets for a cable, planned from the times that each rank measured; judged by the simulator."""

import random
from itertools import accumulate

from ddp_course.grader.vocabulary import Call, Job, Wrong, check, expect, plural, show
from ddp_course.plan.schedule import Compute, Gradient, buckets, simulate

FUNCTION = "plan"
MAX_SHARE = 0.90  # of the seconds with the default buckets


def gradients(layers, width, vocabulary=0):
    """{name: bytes} of a transformer, in the order of model.parameters()."""
    sizes = {"embedding": vocabulary * width} if vocabulary else {}
    for layer in range(layers):
        sizes |= {f"{layer}.attention": 4 * width**2, f"{layer}.up": 4 * width**2, f"{layer}.down": 4 * width**2}
    return {name: 4 * size for name, size in (sizes | {"norm": width}).items()}


def even(sizes, backward):
    """{name: seconds until it is ready}, in backward's order; each gradient takes its share of the bytes."""
    order, total = list(reversed(sizes)), sum(sizes.values())
    return {
        name: backward * computed / total
        for name, computed in zip(order, accumulate(sizes[name] for name in order), strict=True)
    }


def late(sizes, backward, begin, end):
    """The same for a rank that is `begin` seconds later at the start of backward, and `end` seconds at its end."""
    return {name: time + begin + (end - begin) * time / backward for name, time in even(sizes, backward).items()}


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
    """`times` in random order, like a dict that several threads have filled."""
    names = list(times)
    random.Random(seed).shuffle(names)
    return {name: times[name] for name in names}


def call(scenario):
    """The call in which each rank gets its own times."""
    sizes, ready, latency, speed = CABLES[scenario]
    return Call(
        [(sizes, shuffled(times, f"{scenario} {rank}"), latency, speed) for rank, times in enumerate(ready)], scenario
    )


JOBS = [Job(2, FUNCTION, tuple(map(call, CABLES)))]


@check("each gradient is in one bucket", begin="{scenario}: ")
def each_gradient_is_in_one_bucket(case, rank, result):
    names = case.args[0][0]
    expect(
        isinstance(result, list) and all(isinstance(bucket, list) and bucket for bucket in result),
        f"{FUNCTION} returned {show(result)} on rank {rank}",
        "the return value: a list of buckets, each a list of names",
    )
    planned = [name for bucket in result for name in bucket]
    for name in [*names, *planned]:
        expect(
            planned.count(name) == 1 and name in names,
            f"{name!r} is in the plan {planned.count(name)} times on rank {rank}",
            "where a bucket is closed, and what is in the last one",
        )


@check("the buckets are in backward's order", begin="{scenario}: ")
def buckets_follow_backward(case, rank, result):
    sizes, ready, *_ = case.args[rank]
    planned, right = [name for bucket in result for name in bucket], sorted(ready, key=ready.get)
    for number, (name, right_name) in enumerate(zip(planned, right, strict=True)):
        expect(
            name == right_name,
            f"gradient {number} of rank {rank}'s plan is {name!r}; backward makes {right_name!r} there",
            "sizes is in the order of forward; backward goes the other way"
            if planned == list(sizes)
            else "the order by time: a model may use its parameters in another order than it holds them",
        )


@check("both ranks plan the same buckets", begin="{scenario}: ")
def all_ranks_agree(case):
    first, second = case.results
    if first != second:
        bucket = next(n for n in range(len(first)) if first[n : n + 1] != second[n : n + 1])
        raise Wrong(
            f"bucket {bucket} holds {bucket_size(first, bucket)} on rank 0 and {bucket_size(second, bucket)} on rank 1",
            "what each rank plans from: its own times, or times that are the same on both?",
        )


@check(
    lambda gained: f"{min(gained):.0%} to {max(gained):.0%} shorter than with the default in {len(CABLES)} cases",
    begin="{scenario}: ",
)
def a_tenth_faster_than_the_default(case):
    sizes, ready, *cable = CABLES[case.scenario]
    last, plan = slowest(ready), case.results[0]
    planned, default = seconds(plan, sizes, last, *cable), seconds(default_plan(sizes, last), sizes, last, *cable)
    expect(
        planned <= MAX_SHARE * default,
        f"the last bucket has arrived after {1e3 * planned:.0f} ms with {plural(len(plan), 'bucket')}, "
        f"after {1e3 * default:.0f} ms with the default",
        lambda: where_to_look(plan, sizes, last, *cable),
    )
    return 1 - planned / default


def slowest(ready):
    """{name: seconds until the last rank has it}"""
    return {name: max(times[name] for times in ready) for name in ready[0]}


def gradient_buckets(plan, sizes, ready):
    """The buckets as the simulator takes them: a bucket's cost is the time since the bucket before was ready."""
    ends = [0.0, *(max(ready[name] for name in bucket) for bucket in plan)]
    pairs = zip(plan, ends, ends[1:], strict=False)
    return [Gradient(sum(map(sizes.get, bucket)), end - begin) for bucket, begin, end in pairs]


def seconds(plan, sizes, ready, latency, speed):
    """Seconds from the start of backward until the last bucket has arrived, by the simulator."""
    merged = gradient_buckets(plan, sizes, ready)
    backward = sum(bucket.cost for bucket in merged)
    return simulate(Compute(0.0, backward), merged, lambda size: latency + size / speed, bucket_mib=1e-9).seconds


def default_plan(sizes, ready):
    """The plan with DDP's default buckets."""
    order = sorted(ready, key=ready.get)
    # Each gradient costs 1, so that the cost of a bucket is the number of its gradients.
    counts = [int(bucket.cost) for bucket in buckets([Gradient(sizes[name], 1) for name in order])]
    remaining = iter(order)
    return [[next(remaining) for _ in range(count)] for count in counts]


def where_to_look(plan, sizes, ready, latency, speed):
    """Where to look, if a plan is too slow."""
    if plan == default_plan(sizes, ready):
        return "these are the default's own buckets: what would another limit do?"
    if len(plan) > 1 and len(plan) * latency > sum(sizes.values()) / speed:
        return "every bucket pays the latency; is the last rank ready early enough for so many?"
    if gradient_buckets(plan, sizes, ready)[0].cost > 0.5 * max(ready.values()):
        return "the cable is idle until the first bucket is full"
    return "the cable waits for the last rank: from which rank's times is the plan made?"


def bucket_size(plan, number):
    return f"{len(plan[number])} gradients" if number < len(plan) else "nothing"
