"""One folder for each exercise question, named after it: 02.1 is q02_1. It tells no story; the notebook does.

checks.py holds

    TITLE   a few words
    HINTS   texts, from a nudge to nearly all of it
    JOBS    what to run: a list of answer_record.Job
    CHECKS  functions that judge what was seen, asked in this order. Each gets the list of JobRecord, one for each job,
            all of which ran to their end; returns in one sentence what it found to be right; raises verdict.Wrong
            with what it observed and one place to look. Its docstring says what it demands.
    GIVEN   optional: the script that the question is about, given.py beside it

A check that needs more than calls with plain arguments has a driver.py (see answer_record.Job).

What several questions ask stands above: detector.py (one verdict on all ranks, right versions pass, broken ones are
caught, the function that it is handed is called once: harness/counted.py), gradient_checks.py, likeness.py (what a
wrong number is, and where to look then), returned.py.

Answers that raise, hang, die or leave something undone never reach the checks: judge.py deals with them. A new
question needs a folder here, a cell in solutions/, and in tests/grader/answers/ a wrong answer for each of its
checks and for each sentence of what it demands.
"""
