"""14.2: from the events of a step, how long messages were under way, and how long the step waited for them."""

import math
import random

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong

FUNCTION = "exposed"


def event(kind, start, end, stream=0):
    return {"name": "event", "kind": kind, "stream": stream, "start": start, "end": end}


def compute(start, end, stream=0):
    return event("compute", start, end, stream)


def message(start, end, stream=20):
    return event("communication", start, end, stream)


def idle(start, end):
    return event("idle", start, end)


def by_ticks(seed):
    """A step of many events at whole milliseconds, and its answer counted tick by tick."""
    luck = random.Random(seed)
    events, ticks = [], {"compute": set(), "communication": set(), "idle": set()}
    for kind, number in (("compute", 12), ("communication", 6), ("idle", 3)):
        for _ in range(number):
            start = luck.randrange(200)
            end = start + luck.randrange(1, 30)
            events.append(event(kind, start / 1e3, end / 1e3, luck.randrange(3)))
            ticks[kind].update(range(start, end))
    luck.shuffle(events)
    sent = ticks["communication"]
    return events, len(sent) / 1e3, len(sent - ticks["compute"]) / 1e3


NONE, NO_COMPUTE, NESTED = "no messages", "no computation", "an operation within another"
STREAMS, GROUPS = "two compute streams", "messages of two groups at once"
IDLE, SPLIT = "idle is noted too", "one message over three operations"
STEPS = {  # events, seconds of communication, seconds of them exposed
    "all hidden": ([compute(0, 4), message(1, 3)], 2.0, 0.0),
    "half hidden": ([compute(0, 4e-5), message(3e-5, 5e-5)], 2e-5, 1e-5),
    "all exposed": ([compute(0, 4), message(4, 6), compute(6, 7)], 2.0, 2.0),
    "computation in the middle": ([message(0, 5), compute(1, 2)], 5.0, 4.0),
    SPLIT: ([compute(0, 2), compute(3, 4), compute(5, 8), message(1, 6)], 5.0, 2.0),
    NO_COMPUTE: ([message(0, 2), message(3, 4)], 3.0, 3.0),
    NONE: ([compute(0, 2), idle(2, 3)], 0.0, 0.0),
    "no events": ([], 0.0, 0.0),
    IDLE: ([compute(0, 2), idle(2, 5), message(1, 5)], 4.0, 3.0),
    NESTED: ([compute(0, 6), compute(1, 3), compute(1.5, 2), message(1, 8)], 7.0, 2.0),
    STREAMS: ([compute(0, 4), compute(2, 6, 13), message(3, 9)], 6.0, 3.0),
    GROUPS: ([compute(0, 2), message(1, 5), message(3, 6, 24)], 5.0, 4.0),
    "groups and streams": (
        [message(1, 5), message(2, 7, 24), compute(0, 3), compute(2, 4, 13), compute(6, 6.5)],
        6.0,
        2.5,
    ),
    "a long operation ends after a later one": ([compute(0, 9), compute(1, 2, 13), message(3, 10)], 7.0, 1.0),
    "events in no order": ([message(6, 8), compute(3, 7), message(2, 4), compute(0, 1)], 4.0, 2.0),
    **{f"many events, {seed}": by_ticks(seed) for seed in range(1, 7)},
}
JOBS = [Job(1, FUNCTION, tuple(Call([(events,)], given) for given, (events, *_) in STEPS.items()))]
LOOK = {
    NESTED: "the profiler notes an operation and those that it calls: their time is there once",
    STREAMS: "two streams compute at once: what both hide is hidden once",
    GROUPS: "while two messages are under way the clock runs once",
    IDLE: "idle is not computation: nothing is hidden behind it",
    SPLIT: "one message may overlap several operations",
    NO_COMPUTE: "a message that meets no computation at all",
}


def communication_counts_once(records):
    """communication is the time in which at least one message is under way."""
    for case, sent, _ in steps(records):
        found = case.results[0]["communication"]
        if not close(found, sent):
            look = LOOK.get(case.given, LOOK[GROUPS])
            raise Wrong(f"{case.given}: {FUNCTION} returned {found!r} s of communication, not {sent:g}", look)
    return "messages that overlap are counted once"


def exposed_is_what_nothing_hides(records):
    """exposed is the time in which a message is under way and nothing is computed on any stream."""
    for case, _, waits in steps(records):
        found = case.results[0]["exposed"]
        if not close(found, waits):
            look = LOOK.get(case.given, "all computation, of all streams, as one set of times")
            raise Wrong(f"{case.given}: {FUNCTION} returned {found!r} s exposed, not {waits:g}", look)
    return f"exposed communication is right in {len(STEPS)} steps"


def the_hidden_share_is_right(records):
    """hidden is the share of the communication that is not exposed, None without any."""
    for case, sent, waits in steps(records):
        found, right = case.results[0]["hidden"], 1 - waits / sent if sent else None
        if found is not right and (right is None or not close(found, right)):
            look = "of the communication, not of the step" if right is not None else "there is no share of nothing"
            shown = right if right is None else f"{right:g}"
            raise Wrong(f"{case.given}: {FUNCTION} returned {found!r} as hidden, not {shown}", look)
    return "the hidden share is right, also where nothing was sent"


CHECKS = [communication_counts_once, exposed_is_what_nothing_hides, the_hidden_share_is_right]


def steps(records):
    for case in cases(records):
        [result] = case.results
        if not isinstance(result, dict) or set(result) != {"communication", "exposed", "hidden"}:
            look = "the return value: a dict with communication, exposed and hidden"
            raise Wrong(f"{case.given}: {FUNCTION} returned {result!r}", look)
        yield case, *STEPS[case.given][1:]


def close(found, right):
    return isinstance(found, int | float) and math.isclose(found, right, abs_tol=1e-9)
