"""14.1: a function that finds in the ranks' traces, each on its own clock, the rank that all others wait for."""

import random

from ddp_course.grader.vocabulary import check, expect, expect_keys, function_job

FUNCTION = "straggler"
PARTS = {"input": 3.0, "forward": 10.0, "backward": 30.0}  # ms of a rank that is not slow


def traces(scenario, world=4, steps=9, more=None, once=None, link=2.0, ahead=None, noted_late=()):
    """{rank: events} as torch.profiler writes them, in microseconds on each rank's own clock.

    more         {(rank, part): extra ms in every step}
    once         {(rank, step): extra ms of input in that step}
    link         ms of a message
    ahead        {rank: ms that its clock is ahead}; default: random
    noted_late   pairs (rank, step) for which the end of the last message is noted 0.3 s late; (rank, -1) for the
                 first message of all
    """
    rng = random.Random(f"14.1 {scenario}")
    ahead = ahead or {rank: rng.uniform(-400, 400) for rank in range(world)}
    events = {rank: [{"ph": "M", "name": "process_name", "pid": rank, "ts": 0.0}] for rank in range(world)}
    begins = [500.0] * world

    def note(rank, name, category, start, end, thread=1):
        times = {"ts": round(1e3 * (start + ahead[rank]), 3), "dur": round(1e3 * (end - start), 3)}
        events[rank].append({"ph": "X", "cat": category, "name": name, "pid": rank, "tid": thread, **times})

    for step in range(steps):
        work = [
            {part: ms + (more or {}).get((rank, part), 0) + rng.uniform(0, 0.1) for part, ms in PARTS.items()}
            for rank in range(world)
        ]
        for rank in range(world):
            work[rank]["input"] += (once or {}).get((rank, step), 0)
        ready = [begins[rank] + sum(work[rank].values()) for rank in range(world)]
        halfway = [end - parts["backward"] + PARTS["backward"] / 2 for end, parts in zip(ready, work, strict=True)]
        first_end = max(halfway) + link
        last_end = max(*ready, first_end) + link
        for rank in range(world):
            ends = [end + rng.uniform(0, 0.05) for end in (first_end, last_end)]
            done = max(ends)
            start = begins[rank]
            for part in ("input", "forward"):
                note(rank, part, "user_annotation", start, start + work[rank][part])
                note(rank, "aten::linear", "cpu_op", start + 0.1, start + work[rank][part] - 0.1)
                start += work[rank][part]
            note(rank, "backward", "user_annotation", start, done + 0.1)
            note(rank, "step", "user_annotation", begins[rank], done + 1.2)
            noted_end = ends[1] + 300 * ((rank, step) in noted_late)
            first_noted = ends[0] + 300 * (step == 0 and (rank, -1) in noted_late)
            note(rank, "gloo:all_reduce", "user_annotation", halfway[rank], first_noted, 7)
            note(rank, "gloo:all_reduce", "user_annotation", ready[rank], noted_end, 8)
            begins[rank] = done + 1.3
    for rank_events in events.values():
        rng.shuffle(rank_events)
    return events


def traces_with_straggler(
    scenario, part, world=4, also=None, neighbour=None, noted_late=(), late_batch=0.0, **settings
):
    """The traces of a run in which a random rank is slow in `part`, and the right answer.

    also: {part: extra ms} of that rank. neighbour: {part: extra ms} of the rank after it. noted_late: the steps in
    which the end of its last message is noted late. late_batch: extra ms of its input in one step.
    """
    rng = random.Random(f"rank of {scenario}")
    rank = rng.randrange(world)
    more = {(rank, part): rng.uniform(8, 20)}
    more |= {((rank + 1) % world, name): ms for name, ms in (neighbour or {}).items()}
    more |= {(rank, name): ms for name, ms in (also or {}).items()}
    noted_late = [(rank, step) for step in noted_late]
    settings |= {"more": more, "once": {(rank, 4): late_batch}, "noted_late": noted_late}
    return traces(scenario, world, **settings), {"rank": rank, "part": part}


EVEN, CLOCKS, LINK = "all are alike", "the clocks differ", "a slow link"
IDLE, PAIR, TURNS, ONCE = "an idle rank", "two are equally slow", "each is slow in turn", "one slow step"
SWAPPED, NOTED = "a longer input and a shorter forward", "ends are noted late"
SOUND = {
    EVEN: traces(EVEN, ahead=dict.fromkeys(range(4), 0.0)),
    CLOCKS: traces(CLOCKS),
    LINK: traces(LINK, link=35.0),
    ONCE: traces(ONCE, once={(2, 4): 80.0}),
    NOTED: traces(NOTED, world=2, noted_late=[(0, 4), (1, -1), (1, 0), (1, 8)]),
    TURNS: traces(TURNS, once={(step % 4, step): 15.0 for step in range(9)}),
    PAIR: traces(PAIR, more={(0, "forward"): 10.0, (3, "forward"): 10.0}, noted_late=[(0, 5)]),
    IDLE: traces(IDLE, more={(1, "input"): -2.0, (1, "forward"): -5.0, (1, "backward"): -10.0}),
    SWAPPED: traces(SWAPPED, more={(2, "input"): 4.0, (2, "forward"): -4.0}),
    "one rank alone": traces("alone", world=1),
}
LOOK = {
    CLOCKS: "the ends of the all-reduces say how far two clocks are apart",
    NOTED: "the median of the gaps is right even if some are wrong; a mean, the smallest or a single one is not",
    LINK: "all ranks wait for the link, and none starts later than the others",
    ONCE: "most steps, not the mean: one slow step is bad luck",
    TURNS: "is it the same rank in most steps?",
    PAIR: "how much later does it start than the latest of the others?",
    IDLE: "no rank waits for the one that has least to do, and none of the others is later than the rest",
    SWAPPED: "does any other rank wait for it?",
}
SLOW = {
    scenario: traces_with_straggler(scenario, part, **settings)
    for scenario, part, settings in (
        ("slow input", "input", {}),
        ("slow forward, and one batch comes late", "forward", {"late_batch": 300.0}),
        ("slow backward", "backward", {}),
        ("slow input, on a slow link", "input", {"link": 35.0}),
        # The input grows by a greater share, but by fewer milliseconds.
        ("slow backward, two ranks", "backward", {"world": 2, "also": {"input": 4.0}}),
        ("slow forward, and three ends are noted late", "forward", {"noted_late": (0, 3, 8)}),
        ("slow input, eight ranks", "input", {"world": 8, "steps": 5}),
        (
            "slow forward, beside a rank with a longer input",
            "forward",
            # More than the mean of the others' backward by most, but not more than their median.
            {"neighbour": {"input": 10.0, "backward": -12.0}, "also": {"backward": 16.0}},
        ),
    )
}
RUNS = SOUND | {scenario: events for scenario, (events, _) in SLOW.items()}
JOBS = [function_job(1, FUNCTION, {scenario: (events,) for scenario, events in RUNS.items()})]


@check(f"in {len(SOUND)} runs without a straggler no rank is named", scenarios=SOUND, begin="{scenario}: ")
def no_rank_is_named_without_cause(case):
    look_at = LOOK.get(case.scenario, "a straggler starts more than 1 ms after all others, in the median")
    expect(case.results[0] is None, f"{FUNCTION} returned {case.results[0]!r}, not None", look_at)


@check(f"the straggler is named in {len(SLOW)} runs", scenarios=SLOW, begin="{scenario}: ")
def the_rank_is_right(case):
    [result], right = case.results, SLOW[case.scenario][1]["rank"]
    expect(
        result is not None,
        f"{FUNCTION} returned None; the others wait for rank {right}",
        "on one clock, by the ends; its start against the latest start of the others",
    )
    expect_keys(result, ("rank", "part"), FUNCTION)
    expect(
        result["rank"] == right,
        f"{FUNCTION} named rank {result['rank']!r}, not {right}",
        "the straggler does not wait: it starts last, and its own messages are the shortest",
    )


@check("the part that makes it late is named", scenarios=SLOW, begin="{scenario}: ")
def the_part_is_right(case):
    part, right = case.results[0]["part"], SLOW[case.scenario][1]["part"]
    expect(
        part == right,
        f"{FUNCTION} named {part!r}, not {right!r}",
        "its median over the steps against the median of the others'; waiting for a message is no part of backward",
    )
