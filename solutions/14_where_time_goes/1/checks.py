"""14.1: a function that reads from the ranks' traces, each on a clock of its own, which rank all others wait for."""

import random

from ddp_course.grader.vocabulary import Call, Job, check, expect

FUNCTION = "straggler"
PARTS = {"input": 3.0, "forward": 10.0, "backward": 30.0}  # ms of a rank that is like the others


def traces(scenario, world=4, steps=9, more=None, once=None, link=2.0, ahead=None, noted_late=()):
    """{rank: events} as torch.profiler writes them, in microseconds on each rank's own clock.

    more: {(rank, part): ms in every step}. once: {(rank, step): ms of input}. link: ms of a message. ahead: {rank: ms
    of its clock}, by default drawn. noted_late: (rank, step) where the end of the last message is noted 0.3 s late.
    """
    luck = random.Random(f"14.1 {scenario}")
    ahead = ahead or {rank: luck.uniform(-400, 400) for rank in range(world)}
    events = {rank: [{"ph": "M", "name": "process_name", "pid": rank, "ts": 0.0}] for rank in range(world)}
    begins = [500.0] * world

    def note(rank, name, category, start, end, thread=1):
        times = {"ts": round(1e3 * (start + ahead[rank]), 3), "dur": round(1e3 * (end - start), 3)}
        events[rank].append({"ph": "X", "cat": category, "name": name, "pid": rank, "tid": thread, **times})

    for step in range(steps):
        own = [
            {part: ms + (more or {}).get((rank, part), 0) + luck.uniform(0, 0.1) for part, ms in PARTS.items()}
            for rank in range(world)
        ]
        for rank in range(world):
            own[rank]["input"] += (once or {}).get((rank, step), 0)
        ready = [begins[rank] + sum(own[rank].values()) for rank in range(world)]
        halfway = [end - parts["backward"] + PARTS["backward"] / 2 for end, parts in zip(ready, own, strict=True)]
        first = max(halfway) + link
        last = max(*ready, first) + link
        for rank in range(world):
            ends = [end + luck.uniform(0, 0.05) for end in (first, last)]
            done = max(ends)
            at = begins[rank]
            for part in ("input", "forward"):
                note(rank, part, "user_annotation", at, at + own[rank][part])
                note(rank, "aten::linear", "cpu_op", at + 0.1, at + own[rank][part] - 0.1)
                at += own[rank][part]
            note(rank, "backward", "user_annotation", at, done + 0.1)
            note(rank, "step", "user_annotation", begins[rank], done + 1.2)
            noted = ends[1] + 300 * ((rank, step) in noted_late)
            note(rank, "gloo:all_reduce", "user_annotation", halfway[rank], ends[0], 7)
            note(rank, "gloo:all_reduce", "user_annotation", ready[rank], noted, 8)
            begins[rank] = done + 1.3
    for own_events in events.values():
        luck.shuffle(own_events)
    return events


def drawn(scenario, part, **settings):
    """A straggler that is drawn, slow in `part`, and the right answer.

    also: {part: ms} of it. neighbour: {part: ms} of the rank after it. noted_late: the steps where its own end is noted
    late.
    """
    luck = random.Random(f"rank of {scenario}")
    world, neighbour = settings.get("world", 4), settings.pop("neighbour", {})
    rank = luck.randrange(world)
    more = {(rank, part): luck.uniform(8, 20)} | {((rank + 1) % world, part): ms for part, ms in neighbour.items()}
    more |= {(rank, other): ms for other, ms in settings.pop("also", {}).items()}
    noted_late = [(rank, step) for step in settings.pop("noted_late", ())]
    return traces(scenario, more=more, noted_late=noted_late, **settings), {"rank": rank, "part": part}


EVEN, CLOCKS, LINK = "all are alike", "the clocks differ", "a slow link"
IDLE, PAIR, TURNS, ONCE = "an idle rank", "two are equally slow", "each is slow in turn", "one slow step"
SWAPPED, NOTED = "a longer input and a shorter forward", "one end is noted late"
SOUND = {
    EVEN: traces(EVEN, ahead=dict.fromkeys(range(4), 0.0)),
    CLOCKS: traces(CLOCKS),
    LINK: traces(LINK, link=35.0),
    ONCE: traces(ONCE, once={(2, 4): 80.0}),
    NOTED: traces(NOTED, world=2, noted_late=[(1, 0)]),
    TURNS: traces(TURNS, once={(step % 4, step): 15.0 for step in range(9)}),
    PAIR: traces(PAIR, more={(0, "forward"): 10.0, (3, "forward"): 10.0}),
    IDLE: traces(IDLE, more={(1, "input"): -2.0, (1, "forward"): -5.0, (1, "backward"): -10.0}),
    SWAPPED: traces(SWAPPED, more={(2, "input"): 4.0, (2, "forward"): -4.0}),
    "one rank alone": traces("alone", world=1),
}
WHERE = {
    CLOCKS: "the ends of the all-reduces say how far two clocks are apart",
    NOTED: "the median of the gaps bears with one that is wrong, a mean or the first one does not",
    LINK: "all wait for the link then, and none starts later than the others",
    ONCE: "most steps, not the mean: one slow step is bad luck",
    TURNS: "is it the same rank in most steps?",
    PAIR: "how much later than the latest of the others?",
    IDLE: "the others do not wait for the rank that has least to do, and none of them is later than the rest",
    SWAPPED: "does anybody wait for that rank?",
}
SLOW = {
    scenario: drawn(scenario, part, **settings)
    for scenario, part, settings in (
        ("slow input", "input", {}),
        ("slow forward", "forward", {}),
        ("slow backward", "backward", {}),
        ("slow input, on a slow link", "input", {"link": 35.0}),
        # The input grows by a greater share, but by fewer milliseconds.
        ("slow backward, two ranks", "backward", {"world": 2, "also": {"input": 4.0}}),
        ("slow forward, and two ends are noted late", "forward", {"noted_late": (0, 3)}),
        ("slow input, eight ranks", "input", {"world": 8, "steps": 5}),
        (
            "slow forward, beside a rank with a longer input",
            "forward",
            {"neighbour": {"input": 10.0, "backward": -10.0}},
        ),
    )
}
RUNS = SOUND | {scenario: events for scenario, (events, _) in SLOW.items()}
JOBS = [Job(1, FUNCTION, tuple(Call([(events,)], scenario) for scenario, events in RUNS.items()))]


@check(f"in {len(SOUND)} runs without a straggler nobody is named", scenarios=SOUND, begin="{scenario}: ")
def nobody_is_blamed_without_cause(case):
    look_at = WHERE.get(case.scenario, "late is who starts more than 1 ms after all others, in the median")
    expect(case.results[0] is None, f"{FUNCTION} returned {case.results[0]!r}, not None", look_at)


@check(f"the straggler is named in {len(SLOW)} runs", scenarios=SLOW, begin="{scenario}: ")
def the_rank_is_right(case):
    [result], right = case.results, SLOW[case.scenario][1]["rank"]
    expect(
        result is not None,
        f"{FUNCTION} returned None; the others wait for rank {right}",
        "on one clock, by the ends; its start against the latest start of the others",
    )
    expect(
        isinstance(result, dict) and set(result) == {"rank", "part"},
        f"{FUNCTION} returned {result!r}",
        "the return value: a dict with rank and part",
    )
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
        "its time against that of the others; waiting for a message is no part of backward",
    )
