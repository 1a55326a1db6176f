"""14.2: a function that finds in a step's events the seconds of communication, and how many of them are exposed."""

import random

from ddp_course.grader.vocabulary import check, expect, expect_keys, function_job, is_close, number

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
    rng = random.Random(seed)
    events, ticks = [], {"compute": set(), "communication": set(), "idle": set()}
    for kind, count in (("compute", 12), ("communication", 6), ("idle", 3)):
        for _ in range(count):
            start = rng.randrange(200)
            end = start + rng.randrange(1, 30)
            events.append(event(kind, start / 1e3, end / 1e3, rng.randrange(3)))
            ticks[kind].update(range(start, end))
    rng.shuffle(events)
    sent = ticks["communication"]
    return events, len(sent) / 1e3, len(sent - ticks["compute"]) / 1e3


NONE, NO_COMPUTE, NESTED = "no messages", "no computation", "an operation within another"
STREAMS, GROUPS = "two compute streams", "messages of two groups at once"
IDLE, SPLIT, SHORT = "idle is noted too", "one message over three operations", "half hidden"
STEPS = {  # events, seconds of communication, seconds of them exposed
    "all hidden": ([compute(0, 4), message(1, 3)], 2.0, 0.0),
    SHORT: ([compute(0, 4e-5), message(3e-5, 5e-5)], 2e-5, 1e-5),
    "all exposed": ([compute(0, 4), message(4, 6), compute(6, 7)], 2.0, 2.0),
    "computation in the middle": ([message(0, 5), compute(1, 2)], 5.0, 4.0),
    SPLIT: ([compute(0, 2), compute(3, 4), compute(5, 8), message(1, 6)], 5.0, 2.0),
    NO_COMPUTE: ([message(0, 2), message(3, 4)], 3.0, 3.0),
    NONE: ([compute(0, 2), idle(2, 3)], 0.0, 0.0),
    "a message of no length": ([compute(0, 2), message(1, 1)], 0.0, 0.0),
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
    "a long operation ends after two later ones": (
        [compute(0, 9), compute(1, 2, 13), compute(5, 8, 13), message(3, 10)],
        7.0,
        1.0,
    ),
    "events in no order": ([message(6, 8), compute(3, 7), message(2, 4), compute(0, 1)], 4.0, 2.0),
    **{f"many events, {seed}": by_ticks(seed) for seed in range(1, 7)},
}
JOBS = [function_job(1, FUNCTION, {scenario: (events,) for scenario, (events, *_) in STEPS.items()})]
LOOK = {
    NESTED: "the profiler notes an operation and those that it calls: their time counts once",
    STREAMS: "two streams compute at once: what both hide is hidden once",
    GROUPS: "while two messages are under way the clock runs once",
    IDLE: "idle is not computation: nothing is hidden behind it",
    SPLIT: "one message may overlap several operations",
    NO_COMPUTE: "without computation nothing is hidden",
}


@check("messages that overlap are counted once", begin="{scenario}: ")
def communication_counts_once(case):
    seconds, (_, right, _) = returned(case, "communication"), STEPS[case.scenario]
    expect(
        is_close(seconds, right, abs_tol=1e-9),
        f"{FUNCTION} returned {seconds!r} s of communication, not {right:g}",
        "a few hundredths of a millisecond: a grid or a rounding loses them"
        if case.scenario == SHORT
        else LOOK.get(case.scenario, LOOK[GROUPS]),
    )


@check(f"exposed communication is right in {len(STEPS)} steps", begin="{scenario}: ")
def exposed_is_what_nothing_hides(case):
    seconds, (_, _, right) = returned(case, "exposed"), STEPS[case.scenario]
    expect(
        is_close(seconds, right, abs_tol=1e-9),
        f"{FUNCTION} returned {seconds!r} s exposed, not {right:g}",
        LOOK.get(case.scenario, "all computation, of all streams, as one set of times"),
    )


@check("the hidden share is right, also where nothing was sent", begin="{scenario}: ")
def the_hidden_share_is_right(case):
    share, (_, communication, exposed) = returned(case, "hidden"), STEPS[case.scenario]
    if not communication:
        expect(
            share is None,
            f"{FUNCTION} returned {share!r} as hidden, not None",
            "without communication there is no share: None",
        )
        return
    right = 1 - exposed / communication
    expect(
        is_close(share, right, abs_tol=1e-9),
        f"{FUNCTION} returned {share!r} as hidden, not {right:g}",
        "of the communication, not of the step",
    )


def returned(case, name):
    """The entry `name` of the dict that was returned, as a number."""
    expect_keys(case.results[0], ("communication", "exposed", "hidden"), FUNCTION)
    return number(case.results[0][name])
