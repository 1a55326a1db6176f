"""Wrong and right answers to question 11.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "believes_the_first_rank", "takes the error of the lowest rank for the first one",
        check="the_blame_is_right", says="two ranks raised, rank 2 first, after 0.0 seconds: blame returned", look="what the seconds say",
        edit="""
        -        _, rank, line = min(causes)
        +        _, rank, line = causes[0]
    """),
    WrongAnswer(
        "believes_every_error", "blames whoever printed an error first, as torchrun does",
        check="the_blame_is_right", says="a metric on rank 0 only, which timed out: blame returned {'what': 'error'",
        look="the first number that one rank lacks", edit="""
        -        if one["error"] and not any(symptom in one["error"][2] for symptom in SYMPTOMS):
        +        if one["error"]:
    """),
    WrongAnswer(
        "looks_at_the_last_numbers", "compares how far the ranks came, and not what they started",
        check="the_blame_is_right", says="the last batch is smaller on rank 1: blame returned None",
        look="sizes included", edit="""
        -        unlike = [rank for rank, entry in entries.items() if entry[:2] != entries[0][:2]]
        +        unlike = []
    """),
    WrongAnswer(
        "compares_names_only", "forgets the sizes",
        check="the_blame_is_right", says="the last batch is smaller on rank 1: blame returned None", edit="""
        -        unlike = [rank for rank, entry in entries.items() if entry[:2] != entries[0][:2]]
        +        unlike = [rank for rank, entry in entries.items() if entry[0] != entries[0][0]]
    """),
    WrongAnswer(
        "compares_lines", "takes two lines that start the same collective for a difference",
        check="the_blame_is_right", says="the same collective from two lines is the same", edit="""
        -        unlike = [rank for rank, entry in entries.items() if entry[:2] != entries[0][:2]]
        +        unlike = [rank for rank, entry in entries.items() if entry != entries[0]]
    """),
    WrongAnswer(
        "reads_from_the_end", "the last difference counts, as in a look at the newest entries",
        check="the_blame_is_right", says="returned", edit="""
        -    for number in range(max(len(one["started"]) for one in ranks)):
        +    for number in reversed(range(max(len(one["started"]) for one in ranks))):
    """),
    WrongAnswer(
        "one_rank_is_enough", "names the first of the ranks that lack it",
        check="the_blame_is_right", says="two of three left early: blame returned {'what': 'missing', 'ranks': [0]",
        look="all ranks that lack it", edit="""
        -            return {"what": "missing", "ranks": missing, "line": entries[min(entries)][2]}
        +            return {"what": "missing", "ranks": missing[:1], "line": entries[min(entries)][2]}
    """),
    WrongAnswer(
        "line_of_the_victim", "gives the line in which the rank that is missing was seen last",
        check="the_blame_is_right", says="a metric on rank 0 only, which timed out",
        look="the line in which the others started it", edit="""
        -            return {"what": "missing", "ranks": missing, "line": entries[min(entries)][2]}
        +            last = ranks[missing[0]]["started"][-1:]
        +            return {"what": "missing", "ranks": missing, "line": last[0][2] if last else None}
    """),
    WrongAnswer(
        "any_connection", "takes every text with `closed` in it for a symptom",
        check="the_blame_is_right", says="an error of the user's own about a closed file", edit="""
        -        if one["error"] and not any(symptom in one["error"][2] for symptom in SYMPTOMS):
        +        if one["error"] and not any(word in one["error"][2] for word in ("closed", "reset", "imed out", "timeout")):
    """),
    WrongAnswer(
        "texts_that_begin_so", "asks whether the text begins with a symptom, once the type is taken off",
        check="the_blame_is_right", says="two of three left early: blame returned {'what': 'error'", edit="""
        -        if one["error"] and not any(symptom in one["error"][2] for symptom in SYMPTOMS):
        +        if one["error"] and not one["error"][2].partition(": ")[2].startswith(SYMPTOMS):
    """),
    WrongAnswer(
        "only_with_a_line", "passes over an error that was raised in no line of the script",
        check="the_blame_is_right", says="in no line of the script, and rank 0 lost contact: blame returned", edit="""
        -        if one["error"] and not any(symptom in one["error"][2] for symptom in SYMPTOMS):
        +        if one["error"] and one["error"][1] and not any(symptom in one["error"][2] for symptom in SYMPTOMS):
    """),
    WrongAnswer(
        "only_failed_ranks", "passes over the error of a rank whose exit code is 0",
        check="the_blame_is_right", says="rank 1 raised, and its exit code is 0: blame returned",
        look="which of the errors says more", edit="""
        -        if one["error"] and not any(symptom in one["error"][2] for symptom in SYMPTOMS):
        +        if one["error"] and one["exit_code"] and not any(symptom in one["error"][2] for symptom in SYMPTOMS):
    """),
    WrongAnswer(
        "zero_seconds_are_unknown", "takes 0.0 seconds for no time, which comes last",
        check="the_blame_is_right", says="rank 2 first, after 0.0 seconds: blame returned", look="what the seconds say",
        edit="""
        -            causes.append((one["error"][0], rank, one["error"][1]))
        +            causes.append((one["error"][0] or float("inf"), rank, one["error"][1]))
    """),
    RightAnswer(
        "with_zip", "zip_longest over the lists, and a sort of the errors", text='''
        from itertools import zip_longest

        SYMPTOMS = ("Connection closed by peer", "Connection reset by peer", "Timed out waiting", "Application timeout caused")


        def blame(ranks):
            errors = sorted((*one["error"], rank) for rank, one in enumerate(ranks) if one["error"])
            for seconds, line, text, rank in errors:
                if all(symptom not in text for symptom in SYMPTOMS):
                    return {"line": line, "ranks": [rank], "what": "error"}
            for entries in zip_longest(*(one["started"] for one in ranks)):
                there = [entry for entry in entries if entry is not None]
                if len(there) < len(entries):
                    lack = [rank for rank, entry in enumerate(entries) if entry is None]
                    return {"line": there[0][2], "ranks": lack, "what": "missing"}
                names = [(name, tuple(sizes)) for name, sizes, _ in entries]
                odd = [rank for rank, one in enumerate(names) if one != names[0]]
                if odd:
                    return {"line": entries[odd[0]][2], "ranks": odd, "what": "unlike"}
    '''),
)  # fmt: skip
