"""15.1: a function that predicts a step of DDP, compared with the steps that given.py measures."""

import json
import math
from pathlib import Path

from ddp_course.grader.vocabulary import Job, Mistake, Wrong, cases, check, driver_job, expect, number, recognised
from ddp_course.plan.schedule import MIB, Compute, Gradient, buckets, simulate

from . import given as given_script

FUNCTION, WITHIN = "step_seconds", 0.15
CASES, ONE_MACHINE = given_script.CASES, "one machine"
MEASURE = Job(2, script=Path(__file__).with_name("given.py"), seconds=50.0, patience=50.0, loads=("torch._dynamo",))
PREDICT = driver_job(1, FUNCTION, {name: (case,) for name, case in CASES.items()})
# The first job finds out whether there is an answer at all: measuring takes seconds.
JOBS = [Job(1, FUNCTION), MEASURE, PREDICT]
LOOK = {  # if no known mistake gives the prediction
    ONE_MACHINE: "what is computed, how often, and what a ring of one machine sends",
    "cable and computation equally busy": "which messages travel while backward goes on",
    "a slow cable, 8 machines": "a message waits for the one before it; the size of a ring's messages",
    "a long way, 4 machines": "how many gradients fill a bucket, and how many messages a ring sends for it",
    "a large gradient comes last": "the last message: the cable is free for it, and no computation is left to hide it",
    "one bucket": "a bucket that never reaches its limit",
    "3 micro-batches": "which of the micro-batches sends, and behind which of them it can hide",
    "the default buckets": "bucket_cap_mb=None: the limit of the first bucket, and of the others",
}


@check("the schedule is written by hand", [PREDICT], begin="")
def written_by_hand(case, rank, result):
    look_at = "the imports: the schedule is yours to write"
    expect(not result["ready_made"], f"{FUNCTION} has loaded ddp_course.plan", look_at)


@check("each prediction is a number of seconds", [PREDICT], begin="{scenario}: ")
def returns_seconds(case, rank, result):
    seconds = number(result["seconds"])
    valid = isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < math.inf
    expect(valid, f"{FUNCTION} returned {seconds!r}", "the return value: seconds, as one number")


@check(lambda errors: f"one machine is predicted with an error of {errors[0]:.0%}")
def computation_is_predicted(records):
    return max(
        checked_error(*prediction) for prediction in predictions(records) if prediction[0].scenario == ONE_MACHINE
    )


@check(
    lambda errors: (
        f"{len(errors[0])} measured steps with messages are predicted, with errors of at most {max(errors[0]):.0%}"
    )
)
def steps_are_predicted(records):
    return [checked_error(*prediction) for prediction in predictions(records) if prediction[0].scenario != ONE_MACHINE]


def predictions(records):
    """(case, predicted seconds, measurement) of each case."""
    measured = {}
    for line in records[1].ranks[0].stdout.splitlines():
        measured |= json.loads(line)
    for case in cases(records[2:]):
        yield case, number(case.results[0]["seconds"]), measured[case.scenario]


def checked_error(case, predicted, measured):
    """The relative error of a prediction; raises Wrong if it is too large.

    On a busy machine the measurement is a range: the seconds that the step lost to other programs may be left out.
    """
    seconds, lost = measured["seconds"], measured["lost"]
    if not (1 - WITHIN) * (seconds - lost) <= predicted <= (1 + WITHIN) * seconds:
        words, look = recognised(predicted, mistakes(**case.args[0][0]), LOOK[case.scenario], rel_tol=0.002)
        busy = f" (up to {1e3 * lost:.0f} ms of it lost to other programs)" if lost > 0.05 * seconds else ""
        raise Wrong(
            f"{case.scenario}: predicted {1e3 * predicted:.0f} ms, measured {1e3 * seconds:.0f} ms{busy}{words}", look
        )
    return abs(predicted / seconds - 1)


def mistakes(forward, gradients, optimizer, bucket_cap_mb, accumulation, ranks, latency, bits_per_second):
    """The known mistakes, each with its prediction, for the facts of a case."""
    compute = Compute(forward, sum(seconds for _, seconds in gradients), optimizer)
    in_order = [Gradient(*entry) for entry in gradients]  # that of backward
    speed = bits_per_second / 8
    messages = 2 * (ranks - 1)  # that a rank sends for one bucket, in a ring
    backward = accumulation * compute.backward

    def all_reduce(size):
        return messages * (latency + size / ranks / speed)

    def step(all_reduce=all_reduce, limit=bucket_cap_mb, batches=accumulation, order=in_order, **options):
        return simulate(compute, order, all_reduce, bucket_mib=limit, accumulation=batches, **options).seconds

    right = step()
    cable_seconds = sum(all_reduce(bucket.bytes) for bucket in buckets(in_order, bucket_cap_mb))
    outside_backward = accumulation * forward + optimizer
    limits = [
        Mistake("a step with 25 MiB for every bucket", step(limit=25), "the limit of the first bucket, by default"),
        Mistake("a step with 1 MiB for every bucket", step(limit=1), "the limit of all buckets but the first"),
    ]
    return (limits if bucket_cap_mb is None else []) + [
        Mistake("the number of milliseconds", 1e3 * right, "the unit: seconds"),
        Mistake("the step without the optimizer", right - optimizer, "what comes after the last message"),
        Mistake("a step of one micro-batch", step(batches=1), "accumulation: what is computed for each micro-batch"),
        Mistake(
            "a step whose messages all wait for backward",
            step(overlap=False),
            "when a message may leave: backward goes on while it travels",
        ),
        Mistake(
            "the longer one of computation and messages",
            outside_backward + max(backward, cable_seconds),
            "the last bucket, which is complete when backward ends, and the first: what hides them?",
        ),
        Mistake("a step in which every micro-batch sends", step(no_sync=False), "the micro-batches under no_sync"),
        Mistake(
            "a cable eight times as fast",
            step(lambda size: messages * (latency + size / ranks / bits_per_second)),
            "the unit of the cable's speed: 8 bits are a byte",
        ),
        Mistake(
            "a cable eight times as slow",
            step(lambda size: messages * (latency + size / ranks / speed * 8)),
            "the unit of the cable's speed: 8 bits are a byte",
        ),
        Mistake(
            "a step that pays the latency once per bucket",
            step(lambda size: latency + messages * size / ranks / speed),
            "how many messages a ring sends per bucket",
        ),
        Mistake(
            "a step that pays no latency",
            step(lambda size: messages * size / ranks / speed),
            "what each message costs before its first byte",
        ),
        Mistake(
            "a step whose buckets cross the cable once, whole",
            step(lambda size: messages * latency + size / speed),
            "how many messages a ring sends per bucket, and how large each of them is",
        ),
        Mistake("a step with one bucket for everything", step(limit=1e9), "what is in a bucket, and when it is full"),
        Mistake(
            "a step in which each gradient is sent by itself",
            step(limit=1e-9),
            "what is in a bucket, and when it is full",
        ),
        Mistake(
            "a step whose buckets close too soon",
            step(limit=bucket_cap_mb and bucket_cap_mb * 1e6 / MIB),
            "which gradient closes a bucket, and the unit of its limit",
        ),
        Mistake(
            "a step whose backward begins at the other end",
            step(order=in_order[::-1]),
            "the order of gradients: the list begins with the first that backward makes",
        ),
    ]
