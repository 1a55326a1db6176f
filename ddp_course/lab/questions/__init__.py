"""One module for each exercise question, named after it: 02.1 is q02_1. It tells no story; the notebook does.

    TITLE   a few words
    HINTS   texts, from a nudge to nearly all of it
    JOBS    what to run: a list of answer_record.Job
    CHECKS  functions that judge what was seen, asked in this order. Each gets the list of JobRecord, one for each job,
            all of which ran to their end; returns in one sentence what it found to be right; raises verdict.Wrong
            with what it observed and one place to look. Its docstring says what it demands.
    GIVEN   optional: the script that the question is about, a file beside the module

A check that needs more than calls with plain arguments has a driver, drive_NN_k.py (see answer_record.Job).

Answers that raise, hang, die or leave something undone never reach the checks: judge.py deals with them. A new
question needs a module here, a cell in solutions/, and in tests/wrong_answers/ a wrong answer for each of its checks.
"""
