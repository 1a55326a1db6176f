"""Wrong and right answers to question 14.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "the_smallest_gap", "takes the smallest gap between the ends for that of the clocks",
        check="no_rank_is_named_without_cause", says="ends are noted late: straggler returned {'rank': 1",
        look="a mean, the smallest or a single one is not", edit="""
        -    ahead = {rank: median(end - other for end, other in pairs[rank]) for rank in traces}
        +    ahead = {rank: min(end - other for end, other in pairs[rank]) for rank in traces}
    """),
    WrongAnswer(
        "slowest_part", "names the rank with the longest input, forward or backward, whether any rank waits or not",
        check="no_rank_is_named_without_cause", says="a longer input and a shorter forward: straggler returned {'rank': 2",
        look="does any other rank wait for it?", edit="""
        -        late = median(start - latest_start for start, latest_start in zip(starts[rank], latest, strict=True))
        +        typical = {peer: [median(step[part] for step in steps[peer]) for part in PARTS] for peer in traces}
        +        late = max(min(own_time - typical[o][k] for o in others) for k, own_time in enumerate(typical[rank]))
    """),
    WrongAnswer(
        "clocks_by_the_starts", "aligns the clocks by the starts, which removes the lateness, too",
        check="the_rank_is_right", says="slow input: straggler returned None; the others wait for rank",
        look="on one clock, by the ends", edit="""
        -    ends = {rank: [step["end"] for step in steps[rank]] for rank in traces}
        +    ends = {rank: [step["start"] for step in steps[rank]] for rank in traces}
    """),
    WrongAnswer(
        "mean_of_the_steps", "compares a part's mean over the steps, in which one late batch counts as much as all others",
        check="the_part_is_right", says="one batch comes late: straggler named 'input', not 'forward'", edit="""
        -            work = {peer: {part: median(step[part] for step in steps[peer]) for part in PARTS} for peer in traces}
        +            count = len(steps[rank])
        +            work = {peer: {part: sum(step[part] for step in steps[peer]) / count for part in PARTS} for peer in traces}
    """),
    WrongAnswer(
        "until_the_first_message", "lets backward end where its first message starts",
        check="the_part_is_right", says="named", look="", edit="""
        -            work = {name: min(b, start) - a for a, b, name in inside if name in PARTS}
        +            sent = min(a for a, _, name in inside if name == "gloo:all_reduce")
        +            work = {name: min(b, sent) - a for a, b, name in inside if name in PARTS}
    """),
    WrongAnswer(
        "the_first_message", "compares the starts of the step's first message, when backward is not over",
        check="the_rank_is_right", says="slow backward: straggler returned None", look="its start against", edit="""
        -            start, end = max((a, b) for a, b, name in inside if name == "gloo:all_reduce")
        +            start, end = min((a, b) for a, b, name in inside if name == "gloo:all_reduce")
    """),
    WrongAnswer(
        "every_event_has_a_duration", "expects a duration of events that have none",
        check="raises", state="crashed", says="KeyError", edit="""
        -    spans = sorted((event["ts"], event["ts"] + event["dur"], event["name"]) for event in events if event["ph"] == "X")
        +    spans = sorted((event["ts"], event["ts"] + event["dur"], event["name"]) for event in events)
    """),
    RightAnswer(
        "who_came_last", "counts in how many steps each rank came last by a millisecond", text='''
        from collections import Counter
        from statistics import median


        def named(events, name):
            return sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e["name"] == name)


        def straggler(traces):
            last = {}
            for rank, events in traces.items():
                messages = named(events, "gloo:all_reduce")
                last[rank] = []
                for start, end in named(events, "step"):
                    last[rank].append([message for message in messages if start <= message[0] <= end][-1])
            if len(traces) == 1:
                return None
            base = last[min(last)]
            offset = {}
            for rank, ones in last.items():
                gaps = sorted(a[1] - b[1] for a, b in zip(ones, base))
                offset[rank] = gaps[len(gaps) // 2]
            comes_last = Counter()
            for step in range(len(base)):
                (second, _), (latest, who) = sorted((ones[step][0] - offset[r], r) for r, ones in last.items())[-2:]
                if latest - second > 1000:
                    comes_last[who] += 1
            for who, times in comes_last.items():
                if times > len(base) / 2:
                    return {"rank": who, "part": longer(traces, last, who)}
            return None


        def longer(traces, last, who):
            typical = {}
            for rank, events in traces.items():
                backward = named(events, "backward")
                typical[rank] = {
                    "input": median(end - start for start, end in named(events, "input")),
                    "forward": median(end - start for start, end in named(events, "forward")),
                    "backward": median(sent - start for (start, _), (sent, _) in zip(backward, last[rank])),
                }
            own = typical.pop(who)
            more = {part: own[part] - median(work[part] for work in typical.values()) for part in own}
            return max(more, key=more.get)
    '''),
)
