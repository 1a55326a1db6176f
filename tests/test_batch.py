"""The answers of a class: no answer changes the grade of another; the grades in three formats."""

import csv
import json
import os
import xml.etree.ElementTree as ElementTree

import pytest
from test_check import RAISES, RIGHT, WRONG

from ddp_course.grader import batch

pytestmark = pytest.mark.usefixtures("module_launches_warm")

# Deletes the results, and kills the process that runs the ranks. Rank 0 alone: rank 1 could find another parent.
HOSTILE = """
import os
import shutil
import signal

def global_mean(values):
    shutil.rmtree("RESULTS", ignore_errors=True)
    if os.environ["RANK"] == "0":
        os.kill(os.getppid(), signal.SIGKILL)
"""

# Tries to write outside its folder, and prints its user, its network interfaces and how many processes it sees.
SPIES = """
import os
import socket

def global_mean(values):
    open("own", "w").close()
    try:
        open("FOLDER/other", "w")
    except PermissionError:
        print("user", os.getuid(), "refused")
    print("interfaces", [name for _, name in socket.if_nameindex()], "processes", len(os.listdir("/proc")) < 100)
    raise ValueError
"""

# Writes a malformed record into the records of its own run.
FORGES = """
import os
with open(os.path.dirname(os.getcwd()) + "/rank_" + os.environ["RANK"] + ".jsonl", "a") as notes:
    print('{"raised": "forged"}', file=notes)
"""


def submit(folder, **answers):
    for student, text in answers.items():
        (folder / student).mkdir(parents=True)
        if text:
            (folder / student / "02_1.py").write_text(text)


def test_a_students_crash_changes_no_other_grade(tmp_path, capsys):
    answers, results = tmp_path / "answers", tmp_path / "results"
    ben = HOSTILE.replace("RESULTS", str(results))
    submit(answers, ann=RIGHT, ben=ben, cleo=RAISES + '\nprint("\\x00\\x1b")\n', dora="", ed=RIGHT)
    submit(answers, fay=RIGHT + FORGES, gus=RIGHT)
    assert batch.main([str(answers), "--out", str(results), "--points", "02.1=2.5"]) == 0

    points = {"ann": "2.5", "ben": "0", "cleo": "0", "dora": "0", "ed": "2.5", "fay": "0", "gus": "2.5"}
    table = list(csv.reader((results / "grades.csv").open()))
    assert table == [["student", "02.1", "sum"], *([student, number, number] for student, number in points.items())]
    suites = ElementTree.parse(results / "junit.xml").getroot()
    failures = {student: "1" if number == "0" else "0" for student, number in points.items()}
    assert [(suite.get("name"), suite.get("failures")) for suite in suites] == list(failures.items())
    assert "IndexError" in suites[2].find("testcase/failure").text
    ann, dora = (json.loads((results / name / "results.json").read_text())["tests"][0] for name in ("ann", "dora"))
    assert (ann["score"], ann["max_score"], ann["status"]) == (2.5, 2.5, "passed")
    assert dora["score"] == 0 and "there is no file 02_1.py" in dora["output"]
    assert "5 of 7: ed" in capsys.readouterr().out


@pytest.fixture(scope="module")
def spying_answer(tmp_path_factory):
    """The command of the sandbox, and what SPIES printed in it."""
    folder = tmp_path_factory.mktemp("only_this_user_may_open_it")
    submit(folder / "answers", ben=SPIES.replace("FOLDER", str(folder)))
    files = batch.answers_by_student(folder / "answers")["ben"]
    sandbox = batch.sandbox_command(files.values())  # not while tests are collected: it loads torch
    return sandbox, batch.grade_student(files, ["02.1"], {"02.1": 1.0}, 100, sandbox)["02.1"].verdict.printed[0]


def test_an_answer_has_no_network_and_sees_no_other_process(spying_answer):
    sandbox, printed = spying_answer
    if not sandbox:
        pytest.skip("this system creates no network namespace")
    assert "interfaces ['lo'] processes True" in printed


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run an answer as another user")
def test_an_answer_that_root_grades_writes_in_its_own_folder_alone(spying_answer):
    assert "user 65534 refused" in spying_answer[1]


def test_an_answer_after_the_time_limit_is_not_graded(tmp_path):
    submit(tmp_path, ann=WRONG)
    grades = batch.grade_student({"02.1": tmp_path / "ann" / "02_1.py"}, ["02.1"], {"02.1": 1.0}, -1, [])
    assert (grades["02.1"].verdict.state, grades["02.1"].points) == (batch.NOT_GRADED, 0)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (["--out", "{answers}"], "exists; --out names a folder that is not there yet"),
        (["--points", "02.1"], "--points are given as 02.1=2.5, for a question that is graded; got '02.1'"),
        (["--points", "03.1=1"], "for a question that is graded; got '03.1=1'"),
        (["--questions", "99.9"], "there is no question '99.9'"),
        (["--seconds", "nan"], "--seconds is a time above 0, got nan"),
    ],
)
def test_a_wrong_flag_is_refused(tmp_path, capsys, change, sentence):
    submit(tmp_path / "answers", ann=RIGHT)
    out = [] if "--out" in change else ["--out", str(tmp_path / "out")]
    words = [word.format(answers=tmp_path / "answers") for word in change]
    assert batch.main([str(tmp_path / "answers"), *out, *words]) == 64
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_empty_folder_and_two_answers_to_one_question_are_refused(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert batch.main([str(tmp_path / "empty"), "--out", str(tmp_path / "out")]) == 64
    assert "no answer in" in capsys.readouterr().err
    submit(tmp_path / "answers", ann=RIGHT)
    (tmp_path / "answers/ann/again").mkdir()
    (tmp_path / "answers/ann/again/02_1.py").write_text(RIGHT)
    assert batch.main([str(tmp_path / "answers"), "--out", str(tmp_path / "out")]) == 64
    assert "ann answers 02.1 twice" in capsys.readouterr().err
