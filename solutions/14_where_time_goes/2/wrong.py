"""Wrong and right answers to question 14.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "adds_durations", "adds up the durations of the messages",
        check="communication_counts_once", says="messages of two groups at once: exposed returned 7",
        look="the clock runs once", edit="""
        -    sent = sum(end - start for start, end in messages)
        +    sent = sum(event["end"] - event["start"] for event in events if event["kind"] == "communication")
    """),
    WrongAnswer(
        "last_end_counts", "lets an interval end where the last that joined it ends, though an earlier one is longer",
        check="communication_counts_once", says="many events, 1: exposed returned", look="the clock runs once", edit="""
        -            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        +            merged[-1] = (merged[-1][0], end)
    """),
    WrongAnswer(
        "one_stream", "looks at the first stream alone",
        check="exposed_is_what_nothing_hides", says="two compute streams: exposed returned 5 s exposed, not 3",
        look="two streams compute at once", edit="""
        -    messages, computation = times(events, "communication"), times(events, "compute")
        +    messages = times(events, "communication")
        +    computation = times([event for event in events if event.get("stream", 0) == 0], "compute")
    """),
    WrongAnswer(
        "difference_of_sums", "subtracts all computation from all communication",
        check="exposed_is_what_nothing_hides", says="half hidden: exposed returned", look="", edit="""
        -    overlap = sum(max(0.0, min(b, d) - max(a, c)) for a, b in messages for c, d in computation)
        +    overlap = min(sent, sum(d - c for c, d in computation))
    """),
    WrongAnswer(
        "the_exposed_share", "returns the share that is exposed",
        check="the_hidden_share_is_right", says="all hidden: exposed returned 0.0 as hidden, not 1",
        look="of the communication", edit="""
        -    return {"communication": sent, "exposed": sent - overlap, "hidden": overlap / sent if sent else None}
        +    return {"communication": sent, "exposed": sent - overlap, "hidden": 1 - overlap / sent if sent else None}
    """),
    WrongAnswer(
        "nothing_is_all_hidden", "says 1.0 where there is no communication",
        check="the_hidden_share_is_right", says="no messages: exposed returned 1.0 as hidden, not None",
        look="without communication there is no share", edit="""
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
            running, sent, exposed, last = {"compute": 0, "communication": 0, "idle": 0}, 0.0, 0.0, 0.0
            for now, change, kind in turns:
                if running["communication"]:
                    sent += now - last
                    exposed += (now - last) * (running["compute"] == 0)
                running[kind] += change
                last = now
            return {"communication": sent, "exposed": exposed, "hidden": (sent - exposed) / sent if sent > 0 else None}
    '''),
    RightAnswer(
        "between_all_edges", "finds for each interval between two edges what is under way in its middle", text='''
        def exposed(events):
            edges = sorted({event[edge] for event in events for edge in ("start", "end")})
            sent = hidden = 0.0
            for left, right in zip(edges, edges[1:]):
                kinds = {event["kind"] for event in events if event["start"] < (left + right) / 2 < event["end"]}
                if "communication" in kinds:
                    sent += right - left
                    hidden += right - left if "compute" in kinds else 0
            return {"communication": sent, "exposed": sent - hidden, "hidden": hidden / sent if sent else None}
    '''),
)
