"""15.1: a function that predicts a step of DDP, compared with the steps that given.py measures."""

import json
import math
from functools import partial
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
    "cable and computation equally busy": "which messages are sent while backward still computes",
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


@check(lambda errors: f"one machine is predicted with an error of {errors[0][0]:.0%}")
def computation_is_predicted(records):
    return checked_errors(records, [ONE_MACHINE])


@check(lambda errors: f"{len(errors[0])} measured steps with messages are predicted within {max(errors[0]):.0%}")
def steps_are_predicted(records):
    return checked_errors(records, CASES.keys() - {ONE_MACHINE})


def checked_errors(records, scenarios):
    """The relative errors of the predictions of these scenarios; raises Wrong if one is too large."""
    measured = {}
    for line in records[1].ranks[0].stdout.splitlines():
        measured |= json.loads(line)
    predictions = [case for case in cases(records[2:]) if case.scenario in scenarios]
    return [checked_error(case, number(case.results[0]["seconds"]), measured[case.scenario]) for case in predictions]


def checked_error(case, predicted, measured):
    """The relative error of a prediction; raises Wrong if it is too large.

    On a busy machine the measurement is a range: the seconds that the step lost to other programs may be left out.
    """
    seconds, lost = measured["seconds"], measured["lost"]
    if not (1 - WITHIN) * (seconds - lost) <= predicted <= (1 + WITHIN) * seconds:
        words, look_at = recognised(predicted, mistakes(**case.args[0][0]), LOOK[case.scenario], rel_tol=0.002)
        busy = f" (up to {1e3 * lost:.0f} ms of it lost to other programs)" if lost > 0.05 * seconds else ""
        raise Wrong(
            f"{case.scenario}: predicted {1e3 * predicted:.0f} ms, measured {1e3 * seconds:.0f} ms{busy}{words}",
            look_at,
        )
    return abs(predicted / seconds - 1)


def mistakes(forward, gradients, optimizer, bucket_cap_mb, accumulation, ranks, latency, bits_per_second):
    """The known mistakes, each with its prediction, for the facts of a case."""
    compute = Compute(forward, sum(seconds for _, seconds in gradients), optimizer)
    in_order = [Gradient(*entry) for entry in gradients]  # that of backward
    speed = bits_per_second / 8
    messages = 2 * (ranks - 1)  # that a rank sends for one bucket, in a ring

    def all_reduce(size, latency=latency, speed=speed):
        return messages * (latency + size / ranks / speed)

    def step(all_reduce=all_reduce, limit=bucket_cap_mb, batches=accumulation, order=in_order, **options):
        return simulate(compute, order, all_reduce, bucket_mib=limit, accumulation=batches, **options).seconds

    right, sent = step(), buckets(in_order, bucket_cap_mb)
    cable_seconds = sum(all_reduce(bucket.bytes) for bucket in sent)
    longer = accumulation * forward + max(accumulation * compute.backward, cable_seconds) + optimizer
    waits = max(sent[0].cost + cable_seconds - compute.backward, all_reduce(sent[-1].bytes))
    never_idle = accumulation * (forward + compute.backward) + waits + optimizer
    latency_once = step(lambda size: latency + messages * size / ranks / speed)
    sent_whole = step(lambda size: messages * latency + size / speed)
    megabytes = bucket_cap_mb and bucket_cap_mb * 1e6 / MIB
    in_bits = "the unit of the cable's speed: 8 bits are a byte"
    of_a_bucket = "what is in a bucket, and when it is full"
    of_a_ring = "how many messages a ring sends per bucket, and how large each of them is"
    at_the_ends = "the last bucket, which is complete when backward ends, and the first: what hides them?"
    limits = [
        Mistake("a step with 25 MiB for every bucket", step(limit=25), "the limit of the first bucket, by default"),
        Mistake("a step with 1 MiB for every bucket", step(limit=1), "the limit of all buckets but the first"),
    ]
    return (limits if bucket_cap_mb is None else []) + [
        Mistake("the number of milliseconds", 1e3 * right, "the unit: seconds"),
        Mistake("the step without the optimizer", right - optimizer, "what comes after the last message"),
        Mistake("a step of one micro-batch", step(batches=1), "accumulation: what is computed for each micro-batch"),
        Mistake(
            "a step whose messages all wait for backward", step(overlap=False), "backward computes while they are sent"
        ),
        Mistake("the longer one of computation and messages", longer, at_the_ends),
        Mistake(
            "a step with a cable that is busy from the first bucket on",
            never_idle,
            "a bucket in the middle of backward: is the cable free when it closes?",
        ),
        Mistake(
            "a step with an empty bucket at its end",
            right + messages * latency,
            "what is left after the last gradient, and whether it is sent",
        ),
        Mistake("a step in which every micro-batch sends", step(no_sync=False), "the micro-batches under no_sync"),
        Mistake("a cable eight times as fast", step(partial(all_reduce, speed=8 * speed)), in_bits),
        Mistake("a cable eight times as slow", step(partial(all_reduce, speed=speed / 8)), in_bits),
        Mistake("a step that pays the latency once per bucket", latency_once, of_a_ring),
        Mistake(
            "a step that pays no latency", step(partial(all_reduce, latency=0)), "what each message costs besides bytes"
        ),
        Mistake("a step whose buckets cross the cable once, whole", sent_whole, of_a_ring),
        Mistake("a step with one bucket for everything", step(limit=1e9), of_a_bucket),
        Mistake("a step in which each gradient is sent by itself", step(limit=1e-9), of_a_bucket),
        Mistake(
            "a step whose buckets close too soon", step(limit=megabytes), f"{of_a_bucket}, and the unit of its limit"
        ),
        Mistake(
            "a step whose backward begins at the other end",
            step(order=in_order[::-1]),
            "`gradients` begins with the first that backward makes",
        ),
    ]
