"""Every wrong answer is caught by the check that should catch it, and every right answer passes.

Two wrong answers and a right one of each exercise run every time, all of them weekly. The weekly run ends with a table
of which check catches which; `make kill-matrix` prints the same, and what the answers' verdicts say. That the course's
own solutions pass is shown by the exercises, see test_exercises.py. The answers of a notebook are graded with one start
of the harness; authoring/answers.py says how an answer is written down.
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ddp_course.authoring.answers import answer_cells, right_answers, wrong_answers
from ddp_course.grader.exercises import load, names
from ddp_course.grader.verdict import EXIT_CODES

from .kill_matrix import all_verdicts, misjudgement, sample, table

pytestmark = pytest.mark.usefixtures("module_launches_warm")
TESTS = Path(__file__).parents[1]
IN_EVERY_RUN = {question: sample(question) for question in names()}


def cases(answers_to):
    """(question, answer) for each answer of each exercise; weekly but for the sample."""
    return [
        pytest.param(
            question,
            answer,
            id=f"{question}-{answer.name}",
            marks=() if answer.name in IN_EVERY_RUN[question] else pytest.mark.weekly,
        )
        for question in names()
        for answer in answers_to(question)
    ]


def verdict_on(question, answer):
    return all_verdicts(question[:2], every=answer.name not in IN_EVERY_RUN[question])[question][answer.name]


@pytest.mark.parametrize(("question", "answer"), cases(wrong_answers))
def test_a_wrong_answer_is_caught(question, answer):
    assert not misjudgement(answer, verdict_on(question, answer))


@pytest.mark.parametrize(("question", "answer"), cases(right_answers))
def test_a_right_answer_passes(question, answer):
    verdict = verdict_on(question, answer)
    assert not misjudgement(answer, verdict)
    assert len(verdict.facts) == len(load(question).checks)


@pytest.mark.weekly
@pytest.mark.parametrize("question", names())
def test_the_table_has_no_survivor(question, record_property):
    """conftest.py prints the recorded tables when all tests have ended."""
    text = table(question, all_verdicts(question[:2], every=True)[question])
    record_property("table", text)
    assert "SURVIVES" not in text


def test_a_recorded_table_is_printed(tmp_path):
    file = tmp_path / "test_file.py"
    file.write_text("def test_recorded(record_property):\n    record_property('table', '| a | b |')\n")
    command = [sys.executable, "-m", "pytest", "-n", "1", "-p", "conftest", str(file)]
    run = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=600)
    assert "\n| a | b |\n" in run.stdout, run.stdout + run.stderr


@pytest.mark.parametrize("question", names())
def test_every_check_catches_a_wrong_answer(question):
    """A check without one is not known to work. A right answer of another design shows that no check is too strict."""
    caught = Counter(answer.check for answer in wrong_answers(question))
    checks = {check.name for check in load(question).checks}
    assert checks <= set(caught), f"no wrong answer is caught by: {sorted(checks - set(caught))}"
    assert max(caught.values()) <= 2, "two answers per check, which differ most"
    assert right_answers(question), "a right answer of another design is needed"
    assert len(answer_cells("solutions", question)) == 1


@pytest.mark.parametrize("question", names())
def test_a_wrong_answer_says_what_it_is(question):
    for answer in wrong_answers(question):
        assert answer.does and answer.check and answer.says, answer
        assert answer.state in EXIT_CODES and answer.state != "passed", answer


@pytest.mark.parametrize("question", names())
def test_a_question_is_complete(question):
    exercise = load(question)
    assert exercise.title and len(exercise.hints) >= 2 and exercise.jobs and exercise.checks
