"""An answer written as an edit: the edit fits in exactly one place, or is refused with its reason."""

import pytest

from ddp_course.authoring import answers as module
from ddp_course.authoring.answers import Answer, answers, edited, text_of
from ddp_course.base.errors import InputError
from ddp_course.grader.exercises import names

from .kill_matrix import main

pytestmark = pytest.mark.smoke

BASE = "def f(x):\n    y = x + 1\n    return y\n\n\ndef g(x):\n    y = x + 2\n    return y\n"


def test_hunks_are_applied_one_after_the_other():
    edit = """
        -    y = x + 1
        +    y = x + 3
        @@
         def g(x):
        +    x = 2 * x
             y = x + 2
        -    return y
        """
    assert edited(BASE, edit) == "def f(x):\n    y = x + 3\n    return y\n\n\ndef g(x):\n    x = 2 * x\n    y = x + 2\n"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ("-    return y\n+    return x", "stands there 2 times, not once:\n    return y"),
        ("-    y = x + 1\n+    y = 0\n@@\n-    y = x + 1\n+    y = 1", "stands there 0 times"),
        ("-    y = x + 1\n+    y = x + 2\n@@\n-    y = x + 2\n+    y = 0", "stands there 2 times"),
        ("-y = x + 1\n+y = 0", "stands there 0 times"),
        ("-    y = x + 1\n+    y = x + 1", "changes nothing"),
        ("+y = 1", "stands there"),
        ("y = x + 1", "begins with ' ', '-', '+' or is '@@', not 'y = x + 1'"),
        ("", "changes nothing"),
    ],
)
def test_an_edit_that_does_not_fit_exactly_once_is_refused(edit, message):
    with pytest.raises(InputError) as refused:
        edited(BASE, edit)
    assert message in str(refused.value)


def test_the_answer_whose_edit_does_not_fit_is_named(monkeypatch):
    broken = {"loose": Answer("loose", "", edit="-no such line"), "below": Answer("below", "", on="loose", edit="-x")}
    monkeypatch.setattr(module, "answers", lambda _: broken)
    with pytest.raises(InputError, match=r"05.3 below, an edit of 'loose': 05.3 loose, an edit of 'solution': stands"):
        text_of("05.3", "below")


@pytest.mark.parametrize("question", names())
def test_every_edit_fits(question):
    for name, answer in answers(question).items():
        assert bool(answer.edit) != bool(answer.text), f"{question} {name} is an edit or a whole text, one of the two"
        compile(text_of(question, name), name, "exec", dont_inherit=True)


def test_an_answer_is_written_to_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["--write", "05_3", "rotates"]) == 0
    path = tmp_path / "runs/answers/05_3_rotates.py"
    assert path.read_text() == text_of("05.3", "rotates")
    assert "python -m ddp_course.grader.check 05.3 runs/answers/05_3_rotates.py" in capsys.readouterr().out
    assert main(["--write", "05_3", "no_such"]) == 1
    assert "05.3 has no answer 'no_such'; there are" in capsys.readouterr().err
    assert main(["--write", "55_3", "rotates"]) == 1
    assert "there is no question '55.3'" in capsys.readouterr().err
