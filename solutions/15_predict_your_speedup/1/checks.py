"""15.1: a function that predicts a step of DDP, held against steps that were measured (given.py)."""

import json
import math
from pathlib import Path

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong
from ddp_course.grader.vocabulary import Mistake, number, recognised
from ddp_course.predict.schedule import MIB, Compute, Gradient, buckets, simulate

from . import given as given_script

GIVEN = Path(__file__).with_name("given.py")
FUNCTION, WITHIN = "step_seconds", 0.15
CASES, ALONE = given_script.CASES, "one machine"
MEASURED = Job(2, script=GIVEN, seconds=50.0, patience=50.0, loads=("torch._dynamo",))
JOBS = [
    Job(1, FUNCTION),  # is there an answer at all? Measuring takes seconds
    MEASURED,
    Job(1, FUNCTION, tuple(Call([(case,)], name) for name, case in CASES.items()), driver=True),
]


def written_by_hand(records):
    """Nothing of ddp_course.predict is used."""
    for case in cases(records[2:]):
        if case.results[0]["ready_made"]:
            raise Wrong(f"{FUNCTION} has loaded ddp_course.predict", "the imports: the schedule is yours to write")
    return "the schedule is written by hand"


def returns_seconds(records):
    """step_seconds returns one number above 0."""
    for case, found, _ in predictions(records):
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < math.inf:
            raise Wrong(f"{case.given}: {FUNCTION} returned {found!r}", "the return value: seconds, as one number")
    return "each prediction is a number of seconds"


def computation_is_predicted(records):
    """Without messages the step is as long as what is computed, within 15 %."""
    error = max(judged(*one) for one in predictions(records) if one[0].given == ALONE)
    return f"one machine is predicted with an error of {error:.0%}"


def steps_are_predicted(records):
    """With messages the step is as long as measured, within 15 %."""
    errors = [judged(*one) for one in predictions(records) if one[0].given != ALONE]
    return f"{len(errors)} measured steps with messages are predicted, with errors of at most {max(errors):.0%}"


CHECKS = [written_by_hand, returns_seconds, computation_is_predicted, steps_are_predicted]


def predictions(records):
    """Each case, what was predicted, and what was measured."""
    measured = {}
    for line in records[1].ranks[0].stdout.splitlines():
        measured |= json.loads(line)
    for case in cases(records[2:]):
        yield case, number(case.results[0]["seconds"]), measured[case.given]


def judged(case, found, measured):
    """The error of a prediction; raises Wrong if it is too large. What the step lost to other programs is not counted
    against a prediction: on a busy machine the measurement is a range."""
    took, lost = measured["seconds"], measured["lost"]
    if not (1 - WITHIN) * (took - lost) <= found <= (1 + WITHIN) * took:
        words, look = recognised(found, mistakes(**case.args[0][0]), otherwise(case.given), rel_tol=0.002)
        busy = f" (up to {1e3 * lost:.0f} ms of it lost to other programs)" if lost > 0.05 * took else ""
        raise Wrong(f"{case.given}: predicted {1e3 * found:.0f} ms, measured {1e3 * took:.0f} ms{busy}{words}", look)
    return abs(found / took - 1)


def mistakes(forward, gradients, optimizer, bucket_cap_mb, accumulation, ranks, latency, bits_per_second):
    """What known mistakes would have predicted."""
    compute = Compute(forward, sum(seconds for _, seconds in gradients), optimizer)
    made, speed, many = [Gradient(*one) for one in gradients], bits_per_second / 8, 2 * (ranks - 1)
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

    right, sent = step(), [one.bytes for one in buckets(made, bucket_cap_mb)]
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
