"""A warm-up says passed, wrong or not attempted, and lets the notebook run on; a solution has to pass."""

import pytest

from ddp_course.grader.warm_up import STRICT_VARIABLE, warm_up

pytestmark = pytest.mark.smoke


def attempted(answer):
    with warm_up("02.a"):
        if answer() != 3:
            raise AssertionError("1 + 2 is 3")  # pytest rewrites an assert


def no_answer_yet():
    raise NotImplementedError("your turn")


@pytest.mark.parametrize(
    ("answer", "message"), [(lambda: 3, "passed"), (lambda: 4, "wrong: 1 + 2 is 3"), (no_answer_yet, "not attempted")]
)
def test_what_a_warm_up_says(answer, message, capsys, monkeypatch):
    monkeypatch.delenv(STRICT_VARIABLE, raising=False)
    attempted(answer)
    assert capsys.readouterr().out == f"warm-up 02.a {message}\n"


def test_an_assertion_without_words_is_shown_as_its_line(capsys, monkeypatch):
    monkeypatch.delenv(STRICT_VARIABLE, raising=False)
    with warm_up("02.a"):
        raise AssertionError
    assert capsys.readouterr().out == "warm-up 02.a wrong: raise AssertionError\n"


@pytest.mark.parametrize("answer", [lambda: 4, no_answer_yet])
def test_a_solution_has_to_pass(answer, monkeypatch):
    monkeypatch.setenv(STRICT_VARIABLE, "1")
    with pytest.raises((AssertionError, NotImplementedError)):
        attempted(answer)


def test_another_error_is_the_readers_to_see():
    with pytest.raises(ZeroDivisionError):
        attempted(lambda: 1 / 0)
