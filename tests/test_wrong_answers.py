"""The grader is itself on trial: every wrong answer is caught by the check that should, every right one passes.

That the course's own solutions pass is shown by the exercises, see test_exercises.py.
All answers of a notebook are graded with one start of the harness; see kill_matrix.py for how one says what it is.
"""

import pytest
from kill_matrix import MATRIX, all_verdicts, answer_cells, answers, header, table

from ddp_course.lab.check import load, names
from ddp_course.lab.verdict import EXIT_CODES

WRONG = [(question, path) for question in names() for path in answers("wrong_answers", question)]
RIGHT = [(question, f"right_{path.stem}") for question in names() for path in answers("right_answers", question)]
LEAST = 5  # wrong answers to a question


def results(question):
    """{name: verdict} of all answers to `question`."""
    return all_verdicts(question[:2])[question]


@pytest.mark.parametrize(("question", "path"), WRONG, ids=lambda value: getattr(value, "stem", value))
def test_a_wrong_answer_is_caught(question, path):
    verdict, wanted = results(question)[path.stem], header(path)
    assert not verdict.passed, f"{question} {path.stem} survives: {wanted['mistake']}"
    assert (verdict.state, verdict.check) == (wanted["state"], wanted["check"]), verdict
    assert wanted["message"] in verdict.observed, verdict
    assert verdict.look and verdict.look not in verdict.observed


@pytest.mark.parametrize(("question", "name"), RIGHT)
def test_a_right_answer_passes(question, name):
    verdict = results(question)[name]
    assert verdict.passed, verdict
    assert len(verdict.facts) == len(load(question).CHECKS)


@pytest.mark.parametrize("question", names())
def test_every_check_earns_its_place(question):
    """A check that catches none of the wrong answers is not known to work; a right route keeps it from being unfair."""
    wrong = answers("wrong_answers", question)
    caught = {results(question)[path.stem].check for path in wrong}
    checks = [check.__name__.replace("_", " ") for check in load(question).CHECKS]
    assert set(checks) <= caught, f"no wrong answer is caught by: {sorted(set(checks) - caught)}"
    assert len(wrong) >= LEAST
    assert answers("right_answers", question), "one right answer by an unlike route is needed"
    assert len(answer_cells("solutions", question)) == 1


@pytest.mark.parametrize("question", names())
def test_the_matrix_is_up_to_date(question):
    assert table(question, results(question)) in MATRIX.read_text(encoding="utf-8"), "run: make kill-matrix"


@pytest.mark.parametrize(("question", "path"), WRONG, ids=lambda value: getattr(value, "stem", value))
def test_a_wrong_answer_says_what_it_is(question, path):
    said = header(path)
    assert list(said) == ["mistake", "state", "check", "message"], path
    assert said["state"] in EXIT_CODES and said["state"] != "passed"


@pytest.mark.parametrize("question", names())
def test_a_question_is_complete(question):
    module = load(question)
    assert module.TITLE and len(module.HINTS) >= 2 and module.JOBS
    assert all(check.__doc__ for check in module.CHECKS)
