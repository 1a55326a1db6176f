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
        "counts_collectives", "blames every rank that started fewer collectives than the one that started most",
        check="the_blame_is_right", says="rank 0 had gone on: blame returned {'what': 'missing', 'ranks': [1, 2]",
        look="all ranks that lack it", edit="""
        -    for number in range(max(len(log["started"]) for log in ranks)):
        +    most = max(len(log["started"]) for log in ranks)
        +    for number in range(most):
        @@
        -        missing = [rank for rank in range(len(ranks)) if rank not in entries]
        -        if missing:
        +        if len(entries) < len(ranks):
        +            missing = [rank for rank, log in enumerate(ranks) if len(log["started"]) < most]
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
