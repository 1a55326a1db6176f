"""Wrong and right answers to question 13.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "first_in_the_list", "takes the order of the list for that of time",
        check="the_first_to_die_is_named", says="as first, not", look="the time of its exit", edit="""
        -            first.append(min(exits)[1])
        +            first.append(exits[0][1])
    """),
    WrongAnswer(
        "by_the_code", "blames the most negative exit code",
        check="the_first_to_die_is_named", says="account named [0] as first, not [2]",
        look="neither the code", edit="""
        -            first.append(min(exits)[1])
        +            first.append(min((code, rank) for _, rank, code in exits)[1])
    """),
    WrongAnswer(
        "only_who_failed", "leaves out ranks with exit code 0",
        check="the_first_to_die_is_named", says="rank 1 left with exit code 0", look="neither the code", edit="""
        -        exits = [(event["time"], event["rank"], event["code"]) for event in mine if event["event"] == "exit"]
        +        exits = [(event["time"], event["rank"], event["code"]) for event in mine if event.get("code")]
    """),
    WrongAnswer(
        "every_attempt", "names a rank of the last attempt, too, which ended well",
        check="the_first_to_die_is_named", says="nothing went wrong: account named [0] as first, not []",
        look="none for the last", edit="""
        -        if any(code for _, _, code in exits):
        -            first.append(min(exits)[1])
        +        first.append(min(exits)[1])
    """),
    WrongAnswer(
        "ended_by_any_rank", "counts a step as done when the first rank has made it",
        check="the_lost_steps_are_counted", says="rank 1 died within a step that rank 0 had ended: account counted 3",
        look="all ranks of the attempt", edit="""
        -    return {step: max(reached) for step, reached in times.items() if len(reached) == len(ranks)}
        +    return {step: max(reached) for step, reached in times.items()}
    """),
    WrongAnswer(
        "ranks_of_the_whole_run", "expects as many ranks in each attempt",
        check="the_lost_steps_are_counted", says="after the restart: account counted", look="of the attempt", edit="""
        -        done = done_by_all(mine)
        +        done = done_by_all(mine, {event["rank"] for event in events})
        @@
        -def done_by_all(events):
        +def done_by_all(events, ranks):
        @@
        -    ranks, times = {event["rank"] for event in events}, {}
        +    times = {}
    """),
    WrongAnswer(
        "from_the_front", "counts the second loss from the front, where the second attempt never was",
        check="the_lost_steps_are_counted", says="a second failure, before the front was reached: account counted 6",
        look="the last step that all ranks of the attempt had done", edit="""
        -            steps += last - min(done)
        +            steps += front - min(done)
    """),
    WrongAnswer(
        "without_resume", "takes the first step of an attempt for the point where it resumed",
        check="the_lost_steps_are_counted", says="rank 1 was killed: account counted 2 lost steps, not 3", edit="""
        -        if event["event"] in ("resume", "step"):
        +        if event["event"] == "step":
    """),
    WrongAnswer(
        "until_it_resumed", "stops the clock when the ranks are there again",
        check="the_lost_seconds_are_measured", says="rank 1 was killed: account measured 6", look="until all were there",
        edit="""
        -            if front in done:
        -                seconds += done[front] - when
        +            seconds += done[min(done)] - when
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
        "by_the_first_rank", "takes the time of the rank that was there first",
        check="the_lost_seconds_are_measured", says="one rank less after the restart: account measured 7",
        look="all were there again", edit="""
        -    return {step: max(reached) for step, reached in times.items() if len(reached) == len(ranks)}
        +    return {step: min(reached) for step, reached in times.items() if len(reached) == len(ranks)}
    """),
    WrongAnswer(
        "a_new_front_each_time", "forgets how far the run had been before the last attempt",
        check="the_lost_seconds_are_measured", says="a second failure, before the front was reached",
        look="an attempt that does not come so far", edit="""
        -        if front is None or last >= front:
        -            front, when = last, done[last]
        +        front, when = last, done[last]
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
    WrongAnswer(
        "ranks_that_began", "does not know of a rank that ended before it had resumed",
        check="the_lost_seconds_are_measured", says="a first attempt that did not begin", look="from when all ranks", edit="""
        -    ranks, times = {event["rank"] for event in events}, {}
        +    ranks, times = {event["rank"] for event in events if event["event"] != "exit"}, {}
    """),
    WrongAnswer(
        "from_second_zero", "starts the clock before anything was done",
        check="the_lost_seconds_are_measured", says="a first attempt that did not begin", edit="""
        -    last, front, when = 0, None, 0.0  # steps at the end of the last attempt; the most there ever were, and since when
        +    last, front, when = 0, 0, 0.0  # steps at the end of the last attempt; the most there ever were, and since when
        @@
        -        if front is not None:
        +        if attempt > 0:
    """),
    WrongAnswer(
        "steps_of_each_restart", "returns a list of the steps, one number for each restart",
        check="the_lost_steps_are_counted", says="counted [] lost steps, not 0", look="one number", edit="""
        -    first, steps, seconds = [], 0, 0.0
        +    first, steps, seconds = [], [], 0.0
        @@
        -            steps += last - min(done)
        +            steps.append(last - min(done))
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
            return {"first": [first[one] for one in sorted(failed)], "steps": steps, "seconds": seconds}
    '''),
)  # fmt: skip
