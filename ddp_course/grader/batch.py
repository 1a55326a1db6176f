"""Grade the answers of a whole class: one folder a student, one file an answer.

    python -m ddp_course.grader.batch ANSWERS --out RESULTS

ANSWERS/ann/02_1.py is ann's answer to question 02.1. All students are graded on the same questions: those named by
--questions, or every question that at least one student answered. Written to RESULTS:

    grades.csv              a row for each student: points per question, and their sum
    junit.xml               the same for continuous integration: a test suite for each student
    ann/results.json        the same for Gradescope, with the grader's messages

With --variant, the answers are repairs of the scripts that `make variant` wrote, and may change few lines of them.

Answers run one after the other, each in processes of its own. Where the system has network namespaces (Linux, with
unshare and ip), an answer sees no network and no other process. If root grades, answers run as the user nobody and can
write only to their own folder. If you grade, they run with your rights: grade answers of strangers in a container, see
docs/teaching.md.
"""

import argparse
import csv
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ddp_course.base.command import run_command
from ddp_course.base.errors import InputError
from ddp_course.base.parser import Parser
from ddp_course.grader.check import BAD_COMMAND
from ddp_course.grader.exercises import load, names
from ddp_course.grader.judge import grade
from ddp_course.grader.variant import Handouts, read_handouts
from ddp_course.grader.verdict import CRASHED, NOT_ATTEMPTED, NOT_GRADED, Verdict

UNSHARE = ["--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
# The last argument of the command is the folder in which the answer may write.
AS_NOBODY = 'for folder; do :; done; chown -R 65534:65534 "$folder" && exec setpriv {} --reuid 65534 --regid 65534'
AS_NOBODY += ' --clear-groups --no-new-privs env "$@"'  # setpriv alone could still execute files that only root may
# For Python or answers in a folder that only root may open: nobody can then read all files, but still not write them.
READ_ALL_FILES = "--inh-caps +dac_read_search --ambient-caps +dac_read_search"
READ_TEST = "import sys, torch; [open(file).close() for file in sys.argv[1:-1]]"


@dataclass
class Grade:
    """The verdict on a student's answer to a question, its points, and the seconds that the grading took."""

    verdict: Verdict
    points: float
    max_points: float
    seconds: float


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns 0 if the answers were graded, whatever the verdicts, and BAD_COMMAND for bad input."""
    parser = Parser(
        prog="python -m ddp_course.grader.batch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("answers", type=Path, help="the folder with a folder for each student")
    parser.add_argument("--out", type=Path, required=True, help="a new folder for the results")
    parser.add_argument("--questions", nargs="+", metavar="NN.K", help="default: all that a student answered")
    parser.add_argument("--points", nargs="+", default=[], metavar="NN.K=P", help="points of a question; default: 1")
    parser.add_argument(
        "--seconds", type=float, default=900.0, help="for all answers of a student together; default: %(default)g"
    )
    parser.add_argument("--variant", type=Path, metavar="DIR", help="a private exercise set; default: the public one")
    try:
        options = parser.parse_args(arguments)
        students = answers_by_student(options.answers)
        handouts = read_handouts(options.variant) if options.variant else None
        questions = questions_to_grade(options.questions, students, handouts)
        points = read_points(options.points, questions)
        if not options.seconds > 0:
            raise InputError(f"--seconds is a time above 0, got {options.seconds:g}")
        if options.out.exists():
            raise InputError(f"{options.out} exists; --out names a folder that is not there yet")
    except InputError as error:
        print(error, file=sys.stderr)
        return BAD_COMMAND
    sandbox = sandbox_command([file for files in students.values() for file in files.values()])
    if not sandbox:
        print("answers are not shut in: this system lets you create no network namespace", file=sys.stderr)
    options.out.mkdir(parents=True)
    grades: dict[str, dict[str, Grade]] = {}
    for number, (student, files) in enumerate(students.items(), 1):
        print(f"{number} of {len(students)}: {student}", flush=True)
        grades[student] = grade_student(files, questions, points, options.seconds, sandbox, handouts)
        write_results(options.out, questions, grades)  # after each student, in case the machine stops
    print(f"wrote {options.out}/grades.csv, junit.xml and a results.json for each student")
    return 0


def answers_by_student(folder: Path) -> dict[str, dict[str, Path]]:
    """{student: {question: file}} of the files NN_K.py, anywhere in the student's folder.

    Raises InputError if there are none, or a student has two for one question.
    """
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; it holds a folder for each student")
    students: dict[str, dict[str, Path]] = {}
    for student in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
        answers = students.setdefault(student.name, {})
        for path in sorted(student.rglob("*.py")):
            question = path.stem.replace("_", ".")
            if question in names():
                if question in answers:
                    raise InputError(f"{student.name} answers {question} twice: {answers[question]} and {path}")
                answers[question] = path
    if not any(students.values()):
        raise InputError(f"no answer in {folder}: those of a student are named as {folder}/ann/02_1.py")
    return students


def questions_to_grade(
    named: list[str] | None, students: dict[str, dict[str, Path]], handouts: Handouts | None
) -> list[str]:
    """The questions named on the command line, or all that students answered, sorted; of `handouts` those in it.

    Raises InputError for a named question that does not exist, or is not in `handouts`.
    """
    if named:
        questions = [load(question).name for question in named]
    else:
        questions = sorted({question for answers in students.values() for question in answers})
    if handouts is None:
        return questions
    missing = [question for question in questions if question not in handouts.allowed_changes]
    if named and missing:
        raise InputError(f"{handouts.folder} holds no script for {', '.join(missing)}")
    return [question for question in questions if question not in missing]


def read_points(words: list[str], questions: list[str]) -> dict[str, float]:
    """The points of each question: 1, or what a word such as "02.1=2.5" gives. Raises InputError for other words."""
    points = dict.fromkeys(questions, 1.0)
    for word in words:
        match = re.fullmatch(r"(\d\d\.\d)=(\d{1,4}(?:\.\d{1,4})?)", word)
        if not match or match[1] not in points:
            raise InputError(f"--points are given as 02.1=2.5, for a question that is graded; got {word!r}")
        points[match[1]] = float(match[2])
    return points


def sandbox_command(answers: Iterable[Path]) -> list[str]:
    """The words of a command that runs the command after them without network and without a view of other processes.

    If root runs it, the command changes to the user nobody, provided that nobody can read the course and the
    `answers`: that is tried. Returns [] if the system allows no network namespace.
    """
    if not (shutil.which("unshare") and shutil.which("ip")):
        return []
    with tempfile.TemporaryDirectory() as folder:
        read_test = [sys.executable, "-P", "-c", READ_TEST, __file__, *map(str, answers), folder]
        for user in ([], ["--user", "--map-root-user"]):
            for run in (AS_NOBODY.format(""), AS_NOBODY.format(READ_ALL_FILES), 'exec "$@"'):
                command = ["unshare", *user, *UNSHARE, "sh", "-c", f"ip link set lo up && {run}", "sh"]
                result = subprocess.run([*command, *read_test], capture_output=True, stdin=subprocess.DEVNULL)
                if result.returncode == 0:
                    return command
    return []


def grade_student(
    files: dict[str, Path],
    questions: list[str],
    points: dict[str, float],
    seconds: float,
    sandbox: list[str],
    handouts: Handouts | None = None,
) -> dict[str, Grade]:
    """Grade a student's answers one after the other. After `seconds`, the remaining ones are "not graded"."""
    grades, start = {}, time.monotonic()
    for question in questions:
        begin = time.monotonic()
        if question not in files:
            verdict = Verdict(question, NOT_ATTEMPTED, f"there is no file {load(question).answer_name}")
        elif begin - start > seconds:
            verdict = Verdict(question, NOT_GRADED, f"the {seconds:g} s for one student's answers were over")
        else:
            try:
                [verdict] = grade([(load(question), files[question])], sandbox=sandbox)
            except Exception as error:  # an answer can write to its records, and must not stop the others' grading
                verdict = Verdict(question, CRASHED, f"its records cannot be judged: {error!r}", "the files it writes")
            verdict = handouts.judge(verdict, files[question]) if handouts else verdict
        earned = points[question] if verdict.passed else 0.0
        grades[question] = Grade(verdict, earned, points[question], time.monotonic() - begin)
        print(f"    {verdict!r}".splitlines()[0], flush=True)
    return grades


def write_results(folder: Path, questions: list[str], grades: dict[str, dict[str, Grade]]):
    """Write the results of all students again: an answer without a sandbox can have deleted earlier ones."""
    for student, row in grades.items():
        (folder / student).mkdir(parents=True, exist_ok=True)
        write_gradescope(folder / student / "results.json", row)
    write_csv(folder / "grades.csv", questions, grades)
    write_junit(folder / "junit.xml", grades)


def write_csv(path: Path, questions: list[str], grades: dict[str, dict[str, Grade]]):
    """Write a row for each student: the points of each question, and their sum."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["student", *questions, "sum"])
        for student, row in grades.items():
            values = [row[question].points for question in questions]
            table.writerow([student, *(f"{value:g}" for value in values), f"{sum(values):g}"])


def write_junit(path: Path, grades: dict[str, dict[str, Grade]]):
    """Write a test suite for each student, with a case for each question; its failure, if any, holds the verdict."""
    suites = ElementTree.Element("testsuites", name="ddp_course")
    for student, row in grades.items():
        failures = sum(not result.verdict.passed for result in row.values())
        suite = ElementTree.SubElement(suites, "testsuite", name=student, tests=str(len(row)), failures=str(failures))
        for question, result in row.items():
            case = ElementTree.SubElement(
                suite, "testcase", classname=student, name=question, time=f"{result.seconds:.1f}"
            )
            if not result.verdict.passed:
                failure = ElementTree.SubElement(case, "failure", message=xml_text(result.verdict.state))
                failure.text = xml_text(repr(result.verdict))
    ElementTree.ElementTree(suites).write(path, encoding="utf-8", xml_declaration=True)


def xml_text(text: str) -> str:
    """`text` with a ? for each character that XML does not allow: an answer may print such characters."""
    return re.sub(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)


def write_gradescope(path: Path, row: dict[str, Grade]):
    """Write a student's grades in Gradescope's format.

    See https://gradescope-autograders.readthedocs.io/en/latest/specs/, "Output format".
    """
    tests = [
        {
            "name": f"{question} {load(question).title}",
            "number": question,
            "score": result.points,
            "max_score": result.max_points,
            "status": "passed" if result.verdict.passed else "failed",
            "output": repr(result.verdict),
        }
        for question, result in row.items()
    ]
    seconds = sum(result.seconds for result in row.values())
    path.write_text(json.dumps({"execution_time": round(seconds), "tests": tests}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    run_command(main)
