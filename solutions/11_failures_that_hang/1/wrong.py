"""Wrong and right answers to question 11.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "believes_every_error", "blames the rank of the first error, though it is a symptom, as torchrun does",
        check="the_blame_is_right", says="a metric on rank 0 only, which timed out: blame returned {'what': 'error'",
        look="the first number that one rank lacks", edit="""
        -        if log["error"] and not any(symptom in log["error"][2] for symptom in SYMPTOMS):
        +        if log["error"]:
    """),
    WrongAnswer(
        "compares_names_only", "forgets the sizes",
        check="the_blame_is_right", says="the last batch is smaller on rank 1: blame returned None", edit="""
        -        unlike = [rank for rank, entry in entries.items() if entry[:2] != entries[0][:2]]
        +        unlike = [rank for rank, entry in entries.items() if entry[0] != entries[0][0]]
    """),
    RightAnswer(
        "with_zip", "zip_longest over the lists, and a sort of the errors", text='''
        from itertools import zip_longest

        SYMPTOMS = ("Connection closed by peer", "Connection reset by peer", "Timed out waiting", "Application timeout caused")


        def blame(ranks):
            errors = sorted((*log["error"], rank) for rank, log in enumerate(ranks) if log["error"])
            for seconds, line, text, rank in errors:
                if all(symptom not in text for symptom in SYMPTOMS):
                    return {"line": line, "ranks": [rank], "what": "error"}
            for entries in zip_longest(*(log["started"] for log in ranks)):
                there = [entry for entry in entries if entry is not None]
                if len(there) < len(entries):
                    lack = [rank for rank, entry in enumerate(entries) if entry is None]
                    return {"line": there[0][2], "ranks": lack, "what": "missing"}
                names = [(name, tuple(sizes)) for name, sizes, _ in entries]
                odd = [rank for rank, name in enumerate(names) if name != names[0]]
                if odd:
                    return {"line": entries[odd[0]][2], "ranks": odd, "what": "unlike"}
    '''),
)
