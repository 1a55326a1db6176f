"""13.1: a function that finds in a run's events which rank died first in each attempt, and what restarts cost."""

import random

from ddp_course.grader.vocabulary import check, expect, expect_keys, function_job, is_close

FUNCTION = "account"
LAG = 0.25  # seconds by which each rank is later than the one below it


def attempt(number, begin, resume, steps, exits, short=()):
    """The events of one attempt: rank 0 resumes at second `begin` with `resume` steps, and makes one step per second.

    exits: (seconds, code) of each rank. short: ranks that do not complete the last step.
    """
    events = []
    for rank, (when, code) in enumerate(exits):
        for step in range(resume, resume + steps + 1 - (rank in short)):
            event = "resume" if step == resume else "step"
            time = begin + step - resume + LAG * rank
            events.append({"time": time, "attempt": number, "rank": rank, "event": event, "step": step})
        events.append({"time": when, "attempt": number, "rank": rank, "event": "exit", "code": code})
    return events


def report(first, steps, seconds, *attempts):
    """The events of all attempts, shuffled, and the right answer: the ranks that died first, steps and seconds."""
    events = [event for attempt_events in attempts for event in attempt_events]
    random.Random(len(events)).shuffle(events)
    return events, first, steps, seconds


DONE = [(90.0, 0), (90.25, 0)]  # exits of two ranks that completed the run
KILLED = attempt(0, 1.0, 0, 7, [(8.75, 1), (8.5, -9)])  # 7 steps, the last one done at 8.25
RUNS = {
    "nothing went wrong": report([], 0, 0.0, attempt(0, 1.0, 0, 9, DONE)),
    "rank 1 was killed": report([1], 3, 9.0, KILLED, attempt(1, 14.0, 4, 5, DONE)),
    "no checkpoint was there": report([1], 7, 13.0, KILLED, attempt(1, 14.0, 0, 9, DONE)),
    "the checkpoint was of the last step": report([1], 0, 6.0, KILLED, attempt(1, 14.0, 7, 2, DONE)),
    "rank 0 was killed, and rank 1 lost contact": report(
        [0], 2, 7.0, attempt(0, 1.0, 0, 6, [(7.5, -9), (7.75, 1)]), attempt(1, 12.0, 4, 5, DONE)
    ),
    "rank 1 left with exit code 0": report(
        [1], 2, 7.0, attempt(0, 1.0, 0, 6, [(8.0, 1), (7.5, 0)]), attempt(1, 12.0, 4, 5, DONE)
    ),
    "rank 1 died within a step that rank 0 had ended": report(
        [1], 2, 9.0, attempt(0, 1.0, 0, 7, [(9.0, 1), (8.0, -9)], short=[1]), attempt(1, 14.0, 4, 5, DONE)
    ),
    "rank 2 of 4 raised, the others were ended": report(
        [2],
        1,
        15.0,
        attempt(0, 1.0, 0, 5, [(9.0, -15), (9.5, -9), (7.0, 1), (8.0, 1)]),
        attempt(1, 20.0, 4, 4, [(90.0, 0)] * 4),
    ),
    "a second failure, beyond the front": report(
        [1, 0], 5, 21.0, KILLED, attempt(1, 14.0, 4, 6, [(20.5, -9), (21.0, 1)]), attempt(2, 30.0, 8, 3, DONE)
    ),
    "a second failure, before the front was reached": report(
        [1, 1], 5, 25.0, KILLED, attempt(1, 14.0, 4, 2, [(17.0, 1), (16.5, -9)]), attempt(2, 30.0, 4, 6, DONE)
    ),
    "a second failure, on the front": report(
        [1, 0], 6, 25.0, KILLED, attempt(1, 14.0, 4, 3, [(17.5, -9), (18.0, 1)]), attempt(2, 30.0, 4, 6, DONE)
    ),
    "an attempt that failed before it had begun": report(
        [1, 1], 3, 25.0, KILLED, attempt(1, 14.0, 4, 0, [(15.0, 1), (14.5, 1)], short=[1]), attempt(2, 30.0, 4, 6, DONE)
    ),
    "a first attempt that did not begin, and one rank less after the restart": report(
        [1, 2],
        2,
        6.75,
        attempt(0, 1.0, 0, 0, [(2.0, 1), (1.5, -9), (2.0, 1)], short=[1]),
        attempt(1, 11.0, 0, 6, [(18.5, 1), (18.25, -15), (18.0, -9)]),
        attempt(2, 22.0, 4, 5, DONE),
    ),
    "one rank more after the restart": report([1], 3, 9.25, KILLED, attempt(1, 14.0, 4, 5, [*DONE, (90.5, 0)])),
    "one rank alone": report([0], 1, 5.0, attempt(0, 1.0, 0, 5, [(6.5, -9)]), attempt(1, 10.0, 4, 5, [(90.0, 0)])),
}
JOBS = [function_job(1, FUNCTION, {scenario: (events,) for scenario, (events, *_) in RUNS.items()})]


@check("who died first is right, whatever the exit codes say", begin="{scenario}: ")
def the_first_to_die_is_named(case):
    first, (_, right, _, _) = returned(case, "first"), RUNS[case.scenario]
    look_at = "the attempts that failed, in order: one rank for each, and none for the last, which ended well"
    if isinstance(first, list) and len(first) == len(right):
        look_at = "the time of a rank's exit says who was first; neither the code nor the place in the list does"
    expect(first == right, f"{FUNCTION} named {first!r} as first, not {right}", look_at)


@check("the steps that were lost are counted", begin="{scenario}: ")
def the_lost_steps_are_counted(case):
    steps, (_, _, right, _) = returned(case, "steps"), RUNS[case.scenario]
    look_at = "from the last step that all ranks of the attempt had done, back to where the next one resumed"
    if not isinstance(steps, int):
        look_at = "one number: the steps that all restarts lost, added up"
    expect(steps == right, f"{FUNCTION} counted {steps!r} lost steps, not {right}", look_at)


@check(f"the seconds that were lost are right in {len(RUNS)} runs", begin="{scenario}: ")
def the_lost_seconds_are_measured(case):
    seconds, (_, _, _, right) = returned(case, "seconds"), RUNS[case.scenario]
    look_at = "from when all ranks had made the step of the front until all have it again, by a step or by a resume"
    if "before the front" in case.scenario or "before it had begun" in case.scenario:
        look_at = "the time of an attempt that does not reach the front is lost, too"
    expect(
        is_close(seconds, right, abs_tol=1e-6), f"{FUNCTION} measured {seconds!r} lost seconds, not {right:g}", look_at
    )


def returned(case, name):
    """The entry `name` of the dict that was returned."""
    expect_keys(case.results[0], ("first", "steps", "seconds"), FUNCTION)
    return case.results[0][name]
