"""Wrong and right answers to question 13.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "first_in_the_list", "takes the order of the list for that of time",
        check="the_first_to_die_is_named", says="as first, not", look="the time of a rank's exit", edit="""
        -            first.append(min(exits)[1])
        +            first.append(exits[0][1])
    """),
    WrongAnswer(
        "only_who_failed", "leaves out ranks with exit code 0",
        check="the_first_to_die_is_named", says="rank 1 left with exit code 0", look="neither the code", edit="""
        -        exits = [(event["time"], event["rank"], event["code"]) for event in own if event["event"] == "exit"]
        +        exits = [(event["time"], event["rank"], event["code"]) for event in own if event.get("code")]
    """),
    WrongAnswer(
        "ended_by_any_rank", "counts a step as done when the first rank has made it",
        check="the_lost_steps_are_counted", says="rank 1 died within a step that rank 0 had ended: account counted 3",
        look="all ranks of the attempt", edit="""
        -    return {step: max(reached) for step, reached in times.items() if len(reached) == len(ranks)}
        +    return {step: max(reached) for step, reached in times.items()}
    """),
    WrongAnswer(
        "from_the_exit", "starts the clock with the exit, and forgets the step that was under way",
        check="the_lost_seconds_are_measured", says="rank 1 was killed: account measured 8.75", look="from when all ranks",
        edit="""
                 if front is None or last >= front:
                     front, when = last, done[last]
        +        when = min(exits)[0]
    """),
    WrongAnswer(
        "the_first_visit_counts", "leaves the front at its first time when a later attempt ends on it",
        check="the_lost_seconds_are_measured", says="a second failure, on the front", edit="""
        -        if front is None or last >= front:
        +        if front is None or last > front:
    """),
    WrongAnswer(
        "cannot_begin", "takes an attempt in which nothing was done for a loss of all steps",
        check="the_lost_steps_are_counted", says="an attempt that failed before it had begun", edit="""
                 if not done:
        +            steps += last
                     continue
    """),
    RightAnswer(
        "by_time", "walks through the events in time, and keeps where each rank is", text='''
        def account(events):
            events = sorted(events, key=lambda event: event["time"])
            members, failed = {}, set()
            for event in events:
                members.setdefault(event["attempt"], set()).add(event["rank"])
                if event.get("code"):
                    failed.add(event["attempt"])
            first, where, last_done, fronts = {}, {}, {}, []
            steps = front = 0
            behind = None
            seconds, previous = 0.0, 0
            began = None
            for event in events:
                attempt = event["attempt"]
                if event["event"] == "exit":
                    first.setdefault(attempt, event["rank"])
                    continue
                at = where.setdefault(attempt, {})
                at[event["rank"]] = event["step"]
                if len(at) < len(members[attempt]):
                    continue
                done = min(at.values())
                if attempt not in last_done:
                    if attempt > 0:
                        steps += previous - done
                        behind = began
                elif done == last_done[attempt]:
                    continue
                last_done[attempt] = previous = done
                if done >= front:
                    if behind is not None:
                        if done == front:
                            seconds += event["time"] - behind
                        behind = None
                    front, began = done, event["time"]
            return {"first": [first[attempt] for attempt in sorted(failed)], "steps": steps, "seconds": seconds}
    '''),
)
