"""Wrong and right answers to question 12.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "all_have_to_be_equal", "compares samples and random states as it compares weights",
        check="a_sound_run_is_left_alone", says="nothing is wrong: diagnose returned {'step': 0, 'what': 'samples'",
        look="samples and random states have to differ", edit="""
        -            if what in ("samples", "random"):
        +            if what == "nothing":
    """),
    WrongAnswer(
        "remembers_random_states", "calls a random state wrong that any rank had in an earlier step",
        check="a_sound_run_is_left_alone", says="a random state returns on another rank", look="within a step", edit="""
        +    seen = set()
             for step, ranks in enumerate(report):
        @@
                         wrong = repeated([set(entry) if what == "samples" else {entry} for entry in entries])
        +                if what == "random":
        +                    wrong = wrong or [rank for rank, entry in enumerate(entries) if entry in seen]
        +                    seen |= set(entries)
    """),
    WrongAnswer(
        "one_kind_after_the_other", "looks for the first kind in the whole run, and then for its step",
        check="the_first_step_is_named", says="two faults, and the first in time counts: diagnose named step 4, not 2",
        look="a later step shows what followed", edit="""
        -    for step, ranks in enumerate(report):
        -        for what in KINDS:
        -            entries = [record[what] for record in ranks]
        +    for what in KINDS:
        +        for step, ranks in enumerate(report):
        +            entries = [record[what] for record in ranks]
    """),
    WrongAnswer(
        "whole_lists", "calls samples equal only if two ranks read the same list",
        check="the_first_step_is_named", says="rank 2 reads one sample of rank 0: diagnose returned None",
        look="one sample that two ranks read in a step is enough", edit="""
        -                wrong = repeated([set(entry) if what == "samples" else {entry} for entry in entries])
        +                wrong = repeated([{str(entry)} for entry in entries])
    """),
    WrongAnswer(
        "parameters_first", "looks at the weights first, as at what matters most",
        check="the_cause_is_named", says="not 'collectives'", look="communicates before it changes the weights", edit="""
        -        for what in KINDS:
        +        for what in reversed(KINDS):
    """),
    WrongAnswer(
        "believes_rank_0", "compares with rank 0",
        check="the_ranks_are_right", says="rank 0 is the odd one: diagnose named the ranks [1, 2, 3], not [0]",
        look="rank 0 can be one of them", edit="""
        -    most = max(entries, key=entries.count)
        -    if 2 * entries.count(most) <= len(entries):
        -        return []
        +    most = entries[0]
    """),
    WrongAnswer(
        "half_is_enough", "takes half of the ranks for a majority",
        check="the_ranks_are_right", says="two of four against two", look="more than half", edit="""
        -    if 2 * entries.count(most) <= len(entries):
        +    if 2 * entries.count(most) < len(entries):
    """),
    WrongAnswer(
        "sorts_the_collectives", "overlooks the order of the collectives, and names what follows",
        check="the_cause_is_named", says="rank 1 reduces in another order: diagnose named 'gradient', not 'collectives'",
        look="name, sizes and order", edit="""
                     entries = [record[what] for record in ranks]
        +            if what == "collectives":
        +                entries = [sorted(entry) for entry in entries]
    """),
    RightAnswer(
        "with_counters", "one loop with Counter and a set of what was seen", text='''
        from collections import Counter

        KINDS = ("samples", "random", "collectives", "gradient", "optimizer", "parameters")


        def diagnose(report):
            for step, ranks in enumerate(report):
                for number, what in enumerate(KINDS):
                    if number < 2:
                        seen, wrong = set(), []
                        for rank, record in enumerate(ranks):
                            own = set(record[what]) if number == 0 else {record[what]}
                            if seen & own:
                                wrong.append(rank)
                            seen |= own
                        if wrong:
                            return dict(step=step, what=what, ranks=wrong)
                        continue
                    texts = [str(record[what]) for record in ranks]
                    counted = Counter(texts)
                    if len(counted) > 1:
                        (right, count), *_ = counted.most_common()
                        clear = count > len(ranks) / 2
                        return dict(step=step, what=what, ranks=[r for r, t in enumerate(texts) if t != right and clear])
            return None
    '''),
)
