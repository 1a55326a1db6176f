"""Wrong and right answers to question 14.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "adds_durations", "adds up the durations of the messages",
        check="communication_counts_once", says="messages of two groups at once: exposed returned 7",
        look="the clock runs once", edit="""
        -    sent = sum(end - start for start, end in messages)
        +    sent = sum(one["end"] - one["start"] for one in events if one["kind"] == "communication")
    """),
    WrongAnswer(
        "first_to_last", "takes all the time from the first message to the last for communication",
        check="communication_counts_once", says="no computation: exposed returned 4", look="a message that meets no",
        edit="""
        -    sent = sum(end - start for start, end in messages)
        +    sent = messages[-1][1] - messages[0][0] if messages else 0.0
    """),
    WrongAnswer(
        "last_end_counts", "lets an interval end where the last that joined it ends, though an earlier one is longer",
        check="communication_counts_once", says="many events, 1: exposed returned", look="the clock runs once", edit="""
        -            found[-1] = (found[-1][0], max(end, found[-1][1]))
        +            found[-1] = (found[-1][0], end)
    """),
    WrongAnswer(
        "in_the_order_of_the_list", "takes the events for sorted",
        check="communication_counts_once", says="events in no order: exposed returned", look="", edit="""
        -    for start, end in sorted((event["start"], event["end"]) for event in events if event["kind"] == kind):
        +    for start, end in ((event["start"], event["end"]) for event in events if event["kind"] == kind):
    """),
    WrongAnswer(
        "every_operation_hides", "subtracts the overlap with each operation, also where two of them hide the same",
        check="exposed_is_what_nothing_hides", says="an operation within another: exposed returned",
        look="their time is there once", edit="""
        -    messages, computation = times(events, "communication"), times(events, "compute")
        +    messages = times(events, "communication")
        +    computation = [(one["start"], one["end"]) for one in events if one["kind"] == "compute"]
    """),
    WrongAnswer(
        "one_stream", "looks at the first stream alone",
        check="exposed_is_what_nothing_hides", says="two compute streams: exposed returned 5 s exposed, not 3",
        look="two streams compute at once", edit="""
        -    messages, computation = times(events, "communication"), times(events, "compute")
        +    messages = times(events, "communication")
        +    computation = times([one for one in events if one.get("stream", 0) == 0], "compute")
    """),
    WrongAnswer(
        "idle_hides", "takes everything that is no message for computation",
        check="exposed_is_what_nothing_hides", says="idle is noted too: exposed returned 0 s exposed, not 3",
        look="idle is not computation", edit="""
        -    messages, computation = times(events, "communication"), times(events, "compute")
        +    messages = times(events, "communication")
        +    computation = times([{**one, "kind": "compute"} for one in events if one not in sent_ones(events)], "compute")
        @@
        +def sent_ones(events):
        +    return [one for one in events if one["kind"] == "communication"]
        +
        +
         def times(events, kind):
    """),
    WrongAnswer(
        "after_the_last_operation", "takes what comes after all computation for all that is exposed",
        check="exposed_is_what_nothing_hides", says="all exposed: exposed returned 0.0 s exposed, not 2",
        look="as one set of times", edit="""
        -    overlap = sum(max(0.0, min(b, d) - max(a, c)) for a, b in messages for c, d in computation)
        +    done = max((end for _, end in computation), default=0.0)
        +    overlap = sent - sum(max(0.0, b - max(a, done)) for a, b in messages)
    """),
    WrongAnswer(
        "tenths_of_milliseconds", "rounds the times, to which a message of 20 microseconds is nothing",
        check="communication_counts_once", says="half hidden: exposed returned 0.0001 s of communication, not 2e-05", edit="""
        -    for start, end in sorted((event["start"], event["end"]) for event in events if event["kind"] == kind):
        +    both = [(round(event["start"], 4), round(event["end"], 4)) for event in events if event["kind"] == kind]
        +    for start, end in sorted(both):
    """),
    WrongAnswer(
        "difference_of_sums", "subtracts all computation from all communication",
        check="exposed_is_what_nothing_hides", says="half hidden: exposed returned", look="", edit="""
        -    overlap = sum(max(0.0, min(b, d) - max(a, c)) for a, b in messages for c, d in computation)
        +    overlap = min(sent, sum(d - c for c, d in computation))
    """),
    WrongAnswer(
        "negative_overlaps", "counts the gap to an operation that does not overlap as an overlap below zero",
        check="exposed_is_what_nothing_hides", says="exposed returned", look="", edit="""
        -    overlap = sum(max(0.0, min(b, d) - max(a, c)) for a, b in messages for c, d in computation)
        +    overlap = sum(min(b, d) - max(a, c) for a, b in messages for c, d in computation)
    """),
    WrongAnswer(
        "first_operation_only", "subtracts one operation from each message",
        check="exposed_is_what_nothing_hides", says="one message over three operations: exposed returned 4",
        look="may overlap several operations", edit="""
        -    overlap = sum(max(0.0, min(b, d) - max(a, c)) for a, b in messages for c, d in computation)
        +    pairs = [[max(0.0, min(b, d) - max(a, c)) for c, d in computation] for a, b in messages]
        +    overlap = sum(next(filter(None, one), 0.0) for one in pairs)
    """),
    WrongAnswer(
        "share_of_the_step", "divides by the step",
        check="the_hidden_share_is_right", says="all hidden: exposed returned 0.5 as hidden, not 1",
        look="of the communication, not of the step", edit="""
        -    return {"communication": sent, "exposed": sent - overlap, "hidden": overlap / sent if sent else None}
        +    step = max((one["end"] for one in events), default=0) - min((one["start"] for one in events), default=0)
        +    return {"communication": sent, "exposed": sent - overlap, "hidden": overlap / step if sent else None}
    """),
    WrongAnswer(
        "the_exposed_share", "returns the share that is exposed",
        check="the_hidden_share_is_right", says="all hidden: exposed returned 0.0 as hidden, not 1",
        look="of the communication", edit="""
        -    return {"communication": sent, "exposed": sent - overlap, "hidden": overlap / sent if sent else None}
        +    return {"communication": sent, "exposed": sent - overlap, "hidden": 1 - overlap / sent if sent else None}
    """),
    WrongAnswer(
        "nothing_is_all_hidden", "calls nothing completely hidden",
        check="the_hidden_share_is_right", says="no messages: exposed returned 1.0 as hidden, not None",
        look="no share of nothing", edit="""
        -    return {"communication": sent, "exposed": sent - overlap, "hidden": overlap / sent if sent else None}
        +    return {"communication": sent, "exposed": sent - overlap, "hidden": overlap / sent if sent else 1.0}
    """),
    WrongAnswer(
        "divides_by_nothing", "divides by the communication where there is none",
        check="raises", state="crashed", says="ZeroDivisionError", edit="""
        -    return {"communication": sent, "exposed": sent - overlap, "hidden": overlap / sent if sent else None}
        +    return {"communication": sent, "exposed": sent - overlap, "hidden": overlap / sent}
    """),
    RightAnswer(
        "sweep", "one pass over all starts and ends, with a count of what is under way", text='''
        def exposed(events):
            turns = []
            for event in events:
                turns.append((event["start"], 1, event["kind"]))
                turns.append((event["end"], -1, event["kind"]))
            turns.sort()
            running, sent, alone, before = {"compute": 0, "communication": 0, "idle": 0}, 0.0, 0.0, 0.0
            for now, change, kind in turns:
                if running["communication"]:
                    sent += now - before
                    alone += (now - before) * (running["compute"] == 0)
                running[kind] += change
                before = now
            return {"communication": sent, "exposed": alone, "hidden": (sent - alone) / sent if sent > 0 else None}
    '''),
    RightAnswer(
        "between_all_edges", "asks for every piece between two edges what is under way in its middle", text='''
        def exposed(events):
            edges = sorted({one[edge] for one in events for edge in ("start", "end")})
            sent = hidden = 0.0
            for left, right in zip(edges, edges[1:]):
                kinds = {one["kind"] for one in events if one["start"] < (left + right) / 2 < one["end"]}
                if "communication" in kinds:
                    sent += right - left
                    hidden += right - left if "compute" in kinds else 0
            return {"communication": sent, "exposed": sent - hidden, "hidden": hidden / sent if sent else None}
    '''),
)  # fmt: skip
