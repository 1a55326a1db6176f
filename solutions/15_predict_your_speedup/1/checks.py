"""15.1: a function that predicts a step of DDP, held against steps that were measured (given.py)."""

import json
import math
from pathlib import Path

from ddp_course.grader.vocabulary import Job, Mistake, Wrong, cases, check, driver_job, expect, number, recognised
from ddp_course.plan.schedule import MIB, Compute, Gradient, buckets, simulate

from . import given as given_script

GIVEN = Path(__file__).with_name("given.py")
FUNCTION, WITHIN = "step_seconds", 0.15
CASES, ALONE = given_script.CASES, "one machine"
MEASURE = Job(2, script=GIVEN, seconds=50.0, patience=50.0, loads=("torch._dynamo",))
PREDICT = driver_job(1, FUNCTION, {name: (case,) for name, case in CASES.items()})
JOBS = [Job(1, FUNCTION), MEASURE, PREDICT]  # the first: is there an answer at all? Measuring takes seconds


@check("the schedule is written by hand", [PREDICT], begin="")
def written_by_hand(case, rank, result):
    look_at = "the imports: the schedule is yours to write"
    expect(not result["ready_made"], f"{FUNCTION} has loaded ddp_course.plan", look_at)


@check("each prediction is a number of seconds", [PREDICT], begin="{scenario}: ")
def returns_seconds(case, rank, result):
    seconds = number(result["seconds"])
    whole = isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < math.inf
    expect(whole, f"{FUNCTION} returned {seconds!r}", "the return value: seconds, as one number")


@check(lambda errors: f"one machine is predicted with an error of {errors[0]:.0%}")
def computation_is_predicted(records):
    return max(judged(*prediction) for prediction in predictions(records) if prediction[0].scenario == ALONE)


@check(
    lambda errors: (
        f"{len(errors[0])} measured steps with messages are predicted, with errors of at most {max(errors[0]):.0%}"
    )
)
def steps_are_predicted(records):
    return [judged(*prediction) for prediction in predictions(records) if prediction[0].scenario != ALONE]


def predictions(records):
    """Each case, what was predicted, and what was measured."""
    measured = {}
    for line in records[1].ranks[0].stdout.splitlines():
        measured |= json.loads(line)
    for case in cases(records[2:]):
        yield case, number(case.results[0]["seconds"]), measured[case.scenario]


def judged(case, predicted, measured):
    """The error of a prediction; raises Wrong if it is too large. What the step lost to other programs is not counted
    against a prediction: on a busy machine the measurement is a range."""
    took, lost = measured["seconds"], measured["lost"]
    if not (1 - WITHIN) * (took - lost) <= predicted <= (1 + WITHIN) * took:
        words, look = recognised(predicted, mistakes(**case.args[0][0]), otherwise(case.scenario), rel_tol=0.002)
        busy = f" (up to {1e3 * lost:.0f} ms of it lost to other programs)" if lost > 0.05 * took else ""
        raise Wrong(
            f"{case.scenario}: predicted {1e3 * predicted:.0f} ms, measured {1e3 * took:.0f} ms{busy}{words}", look
        )
    return abs(predicted / took - 1)


def mistakes(forward, gradients, optimizer, bucket_cap_mb, accumulation, ranks, latency, bits_per_second):
    """The predictions of known mistakes."""
    compute = Compute(forward, sum(seconds for _, seconds in gradients), optimizer)
    made, speed, many = [Gradient(*entry) for entry in gradients], bits_per_second / 8, 2 * (ranks - 1)
    backward = accumulation * compute.backward

    def step(
        message=lambda size: many * (latency + size / ranks / speed),
        limit=bucket_cap_mb,
        batches=accumulation,
        made=made,
        compute=compute,
        **how,
    ):
        return simulate(compute, made, message, bucket_mib=limit, accumulation=batches, **how).seconds

    right, sent = step(), [bucket.bytes for bucket in buckets(made, bucket_cap_mb)]
    on_the_cable = sum(many * (latency + size / ranks / speed) for size in sent)
    around = accumulation * forward + optimizer
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
            around + max(backward, on_the_cable),
            "the last bucket, which is complete when backward ends, and the first: what hides them?",
        ),
        Mistake("a step in which every micro-batch sends", step(no_sync=False), "the micro-batches under no_sync"),
        Mistake(
            "a cable eight times as fast",
            step(lambda size: many * (latency + size / ranks / bits_per_second)),
            "the unit of the cable's speed: 8 bits are a byte",
        ),
        Mistake(
            "a cable eight times as slow",
            step(lambda size: many * (latency + size / ranks / speed * 8)),
            "the unit of the cable's speed: 8 bits are a byte",
        ),
        Mistake(
            "a step that pays the latency once per bucket",
            step(lambda size: latency + many * size / ranks / speed),
            "how many messages a ring sends per bucket",
        ),
        Mistake(
            "a step that pays no latency",
            step(lambda size: many * size / ranks / speed),
            "what each message costs before its first byte",
        ),
        Mistake(
            "a step whose buckets cross the cable once, whole",
            step(lambda size: many * latency + size / speed),
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
            step(made=made[::-1]),
            "the order of gradients: the list begins with the first that backward makes",
        ),
    ]


def otherwise(name):
    return {
        ALONE: "what is computed, how often, and what a ring of one machine sends",
        "cable and computation equally busy": "which messages travel while backward goes on",
        "a slow cable, 8 machines": "a message waits for the one before it; the size of a ring's messages",
        "a long way, 4 machines": "how many gradients fill a bucket, and how many messages a ring sends for it",
        "a large gradient comes last": "what nothing can hide, and what waits for nothing",
        "one bucket": "a bucket that never reaches its limit",
        "3 micro-batches": "which of the micro-batches sends, and behind which of them it can hide",
        "the default buckets": "bucket_cap_mb=None: the limit of the first bucket, and of the others",
    }[name]
