"""The grader is itself on trial: every wrong answer is caught by the check that should, every right one passes.

A usual run grades the right answers and one wrong answer for each check. DDP_COURSE_EVERY_CASE=1 grades all, as
`make kill-matrix` does. That the course's own solutions pass is shown by the exercises, see test_exercises.py.
The answers of a notebook are graded with one start of the harness; see edited.py for how one says what it is.
"""

import os

import pytest

from ddp_course.grader.check import load, names
from ddp_course.grader.verdict import EXIT_CODES

from .edited import answer_cells, mistakes, routes
from .kill_matrix import INTRODUCTION, MATRIX, all_verdicts, one_for_each_check, table

EVERY = os.environ.get("DDP_COURSE_EVERY_CASE", "0") != "0"
WRONG = [
    pytest.param(question, one, id=f"{question}-{one.name}")
    for question in names()
    for one in (mistakes(question) if EVERY else one_for_each_check(question))
]
RIGHT = [pytest.param(question, one, id=f"{question}-{one.name}") for question in names() for one in routes(question)]
LEAST = 5  # wrong answers to a question


def results(question):
    """{name: verdict} of the answers to `question` that this run grades."""
    return all_verdicts(question[:2], EVERY)[question]


@pytest.mark.parametrize(("question", "mistake"), WRONG)
def test_a_wrong_answer_is_caught(question, mistake):
    verdict = results(question)[mistake.name]
    assert not verdict.passed, f"{question} {mistake.name} survives: {mistake.does}"
    assert (verdict.state, verdict.check) == (mistake.state, mistake.check), verdict
    assert mistake.says in verdict.observed, verdict
    assert verdict.look and verdict.look not in verdict.observed
    assert mistake.look in verdict.look, verdict


@pytest.mark.parametrize(("question", "route"), RIGHT)
def test_a_right_answer_passes(question, route):
    verdict = results(question)[route.name]
    assert verdict.passed, verdict
    assert len(verdict.facts) == len(load(question).CHECKS)


@pytest.mark.parametrize("question", names())
def test_every_check_earns_its_place(question):
    """A check that catches none of the wrong answers is not known to work; a right route keeps it from being unfair."""
    wrong = mistakes(question)
    caught = {mistake.check for mistake in wrong}
    checks = [check.__name__.replace("_", " ") for check in load(question).CHECKS]
    assert set(checks) <= caught, f"no wrong answer is caught by: {sorted(set(checks) - caught)}"
    assert len(wrong) >= LEAST
    assert routes(question), "one right answer by an unlike route is needed"
    assert len(answer_cells("solutions", question)) == 1


def test_the_matrix_is_up_to_date():
    """It names every answer with the state and the check that test_a_wrong_answer_is_caught holds them to, and holds
    nothing else: merges have left their marks in it."""
    tables = [table(question, {one.name: (one.state, one.check) for one in mistakes(question)}) for question in names()]
    assert MATRIX.read_text(encoding="utf-8") == "\n".join([INTRODUCTION, *tables]), "run: make kill-matrix"


@pytest.mark.parametrize("question", names())
def test_a_wrong_answer_says_what_it_is(question):
    for mistake in mistakes(question):
        assert mistake.does and mistake.check and mistake.says, mistake
        assert mistake.state in EXIT_CODES and mistake.state != "passed", mistake


@pytest.mark.parametrize("question", names())
def test_a_question_is_complete(question):
    module = load(question)
    assert module.TITLE and len(module.HINTS) >= 2 and module.JOBS
    assert all(check.__doc__ for check in module.CHECKS)
