"""A private exercise set: the script handed out fails, its repair passes, the public solution is no repair of it."""

import csv
import json

import pytest

from ddp_course.authoring import variant
from ddp_course.authoring.answers import SOLUTION, text_of
from ddp_course.base.errors import InputError
from ddp_course.grader import batch
from ddp_course.grader.exercises import names
from ddp_course.grader.variant import changed_lines, read_handouts
from ddp_course.grader.verdict import PASSED, Verdict

pytestmark = pytest.mark.usefixtures("module_launches_warm")
NONE = {"02.1", "12.3", "16.1", "27.1"}  # answers of a few lines, which a rename leaves close to the public solution


@pytest.fixture(scope="module")
def exercise_set(tmp_path_factory):
    folder = tmp_path_factory.mktemp("variant") / "17"
    assert variant.main(["17", "--questions", "05.3", "18.3", "--out", str(folder)]) == 0
    return folder


def test_the_public_solution_is_no_repair_and_the_key_is(exercise_set, tmp_path):
    answers = {
        "copied": text_of("05.3", SOLUTION),
        "nothing_done": (exercise_set / "handout" / "05_3.py").read_text(),
        "repaired": "# found it\n" + (exercise_set / "key" / "05_3.py").read_text(),
    }
    for student, text in answers.items():
        (tmp_path / "answers" / student).mkdir(parents=True)
        (tmp_path / "answers" / student / "05_3.py").write_text(text)
    command = [str(tmp_path / "answers"), "--out", str(tmp_path / "results"), "--variant", str(exercise_set)]
    assert batch.main(command) == 0
    rows = {row["student"]: row["05.3"] for row in csv.DictReader((tmp_path / "results" / "grades.csv").open())}
    assert rows == {"copied": "0", "nothing_done": "0", "repaired": "1"}
    words = json.loads((tmp_path / "results" / "copied" / "results.json").read_text())["tests"][0]["output"]
    assert "lines of code differ from the script that was handed out" in words


def test_another_seed_writes_another_script_and_the_same_seed_the_same(exercise_set):
    same, other = variant.make("18.3", 17), variant.make("18.3", 18)
    assert same.handout == (exercise_set / "handout" / "18_3.py").read_text() != other.handout
    assert changed_lines(same.key, other.handout) > same.lines, (
        "the repair of one seed is no repair of another's script"
    )


def test_comments_and_line_breaks_are_free(exercise_set, tmp_path):
    answer = tmp_path / "05_3.py"
    answer.write_text((exercise_set / "key" / "05_3.py").read_text().replace("(", "(  # why\n", 1))
    assert read_handouts(exercise_set).judge(Verdict("05.3", PASSED), answer).passed


def test_a_folder_that_is_there_is_left_alone_and_one_without_a_variant_is_named(exercise_set, tmp_path, capsys):
    assert variant.main(["17", "--out", str(exercise_set)]) == 2
    assert "exists" in capsys.readouterr().err
    with pytest.raises(InputError, match="make variant writes"):
        read_handouts(tmp_path)


def test_a_question_that_the_set_lacks_is_not_left_out_in_silence(exercise_set, tmp_path, capsys):
    (tmp_path / "answers" / "ann").mkdir(parents=True)
    (tmp_path / "answers" / "ann" / "02_2.py").write_text("")
    command = [str(tmp_path / "answers"), "--out", str(tmp_path / "out"), "--variant", str(exercise_set)]
    assert batch.main([*command, "--questions", "02.2", "05.3"]) == 64
    assert "no script for 02.2" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_a_question_whose_answer_is_a_few_lines_is_left_out(tmp_path, monkeypatch, capsys):
    """All questions: it is skipped. Named ones: the exit code tells. If nothing else was named, there is no folder."""
    folders = [tmp_path / name for name in ("all", "named", "none")]
    monkeypatch.setattr(variant, "names", lambda: ["16.1", "18.3"])
    assert variant.main(["17", "--out", str(folders[0])]) == 0
    assert "left out: question 16.1 has no fault whose repair differs" in capsys.readouterr().out
    assert [path.name for path in sorted((folders[0] / "handout").iterdir())] == ["18_3.py", "README.md"]
    assert variant.main(["17", "--questions", "18.3", "16.1", "--out", str(folders[1])]) == 2
    assert read_handouts(folders[1]).allowed_changes.keys() == {"18.3"}
    assert variant.main(["17", "--questions", "16.1", "--out", str(folders[2])]) == 2
    assert "none of these questions has a variant" in capsys.readouterr().err and not folders[2].exists()


@pytest.mark.weekly
@pytest.mark.parametrize("question", [name for name in names() if name not in NONE])
def test_every_other_question_has_a_variant(question):
    made = variant.make(question, 5)
    assert made.handout != made.key and changed_lines(made.handout, text_of(question, SOLUTION)) > made.lines
