"""Grade the answers of a whole class: one folder a student, one file an answer.

    python -m ddp_course.grader.batch ANSWERS --out RESULTS

ANSWERS/ann/02_1.py is ann's answer to question 02.1. Every student gets every question that is asked: those named by
--questions, or all that anybody answered. RESULTS gets

    grades.csv              a row for each student: points per question, and their sum
    junit.xml               the same for continuous integration: a test suite for each student
    ann/results.json        the same for Gradescope, with the grader's words

With --variant, the answers are repairs of the scripts that `make variant` wrote, and have to be those scripts but
for their faults.

Each answer runs for itself. Where the system has network namespaces (Linux, with unshare and ip), it sees no network
and no other process. Started by root, it runs as nobody, who can write in its own folder alone; started by you, it
runs as you, so shut strangers' answers into a container: docs/teaching.md.
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
from ddp_course.grader.verdict import CRASHED, NOT_ATTEMPTED, Verdict

UNSHARE = ["--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
# The last argument of the command that is shut in is the folder that its answer may write in.
AS_NOBODY = 'for folder; do :; done; chown -R 65534:65534 "$folder" && exec setpriv {} --reuid 65534 --regid 65534'
AS_NOBODY += ' --clear-groups --no-new-privs env "$@"'  # env: setpriv itself still starts what only root may
# For Python or answers in a folder that only root may open: nobody reads all files then, and still writes none.
READS_ALL = "--inh-caps +dac_read_search --ambient-caps +dac_read_search"
READS = "import sys, torch; [open(file).close() for file in sys.argv[1:-1]]"
NOT_GRADED = "not graded"  # the student's time was used up


@dataclass
class Grade:
    """One student's verdict on one question, with the points that it gives and could give."""

    verdict: Verdict
    points: float
    of: float
    seconds: float


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0 if all answers were graded, whatever they are worth."""
    parser = Parser(
        prog="python -m ddp_course.grader.batch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("answers", type=Path, help="the folder with a folder for each student")
    parser.add_argument("--out", type=Path, required=True, help="a new folder for the results")
    parser.add_argument("--questions", nargs="+", metavar="NN.K", help="default: all that anybody answered")
    parser.add_argument("--points", nargs="+", default=[], metavar="NN.K=P", help="points of a question; default: 1")
    parser.add_argument(
        "--seconds", type=float, default=900.0, help="for each student's answers together; default: %(default)g"
    )
    parser.add_argument("--variant", type=Path, metavar="DIR", help="a private exercise set; default: the public one")
    try:
        options = parser.parse_args(arguments)
        students = answers_by_student(options.answers)
        asked = questions(options.questions, students)
        handouts = options.variant and read_handouts(options.variant)
        if handouts:
            if lacking := [question for question in options.questions or () if question not in handouts.lines]:
                raise InputError(f"{options.variant} holds no script for {', '.join(lacking)}")
            asked = [question for question in asked if question in handouts.lines]
        points = read_points(options.points, asked)
        if not options.seconds > 0:
            raise InputError(f"--seconds is a time above 0, got {options.seconds:g}")
        if options.out.exists():
            raise InputError(f"{options.out} exists; --out names a folder that is not there yet")
    except InputError as error:
        print(error, file=sys.stderr)
        return BAD_COMMAND
    sandbox = shut_in([file for files in students.values() for file in files.values()])
    if not sandbox:
        print("answers are not shut in: this system lets you create no network namespace", file=sys.stderr)
    options.out.mkdir(parents=True)
    grades: dict[str, dict[str, Grade]] = {}
    for number, (student, files) in enumerate(students.items(), 1):
        print(f"{number} of {len(students)}: {student}", flush=True)
        grades[student] = grade_student(files, asked, points, options.seconds, sandbox, handouts)
        write_results(options.out, asked, grades)  # after each: nothing is lost if the machine stops
    print(f"wrote {options.out}/grades.csv, junit.xml and a results.json for each student")
    return 0


def answers_by_student(folder: Path) -> dict[str, dict[str, Path]]:
    """Student -> question -> file: NN_K.py, anywhere in the student's folder. Raises InputError if there is none."""
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


def questions(wanted: list[str] | None, students: dict[str, dict[str, Path]]) -> list[str]:
    """The questions to grade, in order. Raises InputError for one that does not exist."""
    if wanted is not None:
        return [load(question).name for question in wanted]
    return sorted({question for answers in students.values() for question in answers})


def read_points(words: list[str], asked: list[str]) -> dict[str, float]:
    """Points by question, from words such as "02.1=2.5"."""
    points = dict.fromkeys(asked, 1.0)
    for word in words:
        match = re.fullmatch(r"(\d\d\.\d)=(\d{1,4}(?:\.\d{1,4})?)", word)
        if not match or match[1] not in points:
            raise InputError(f"--points are given as 02.1=2.5, for a question that is graded; got {word!r}")
        points[match[1]] = float(match[2])
    return points


def shut_in(answers: Iterable[Path] = ()) -> list[str]:
    """The command that runs another without network and other processes; empty where the system has none.

    As nobody if root starts it and nobody can read the course and the `answers`, which is tried.
    """
    if not (shutil.which("unshare") and shutil.which("ip")):
        return []
    with tempfile.TemporaryDirectory() as folder:
        reads = [sys.executable, "-P", "-c", READS, __file__, *map(str, answers), folder]
        for user in ([], ["--user", "--map-root-user"]):
            for ends in (AS_NOBODY.format(""), AS_NOBODY.format(READS_ALL), 'exec "$@"'):
                command = ["unshare", *user, *UNSHARE, "sh", "-c", f"ip link set lo up && {ends}", "sh"]
                if subprocess.run([*command, *reads], capture_output=True, stdin=subprocess.DEVNULL).returncode == 0:
                    return command
    return []


def grade_student(files, asked, points, seconds, sandbox, handouts: Handouts | None = None) -> dict[str, Grade]:
    """Grade one answer after the other; once `seconds` are over, the rest is "not graded"."""
    grades, start = {}, time.monotonic()
    for question in asked:
        begin = time.monotonic()
        if question not in files:
            verdict = Verdict(question, NOT_ATTEMPTED, f"there is no file {load(question).answer_name}")
        elif begin - start > seconds:
            verdict = Verdict(question, NOT_GRADED, f"the {seconds:g} s for one student's answers were over")
        else:
            try:
                [verdict] = grade([(load(question), files[question])], sandbox=sandbox)
            except Exception as error:  # an answer can write into its records: no other one may suffer for it
                verdict = Verdict(question, CRASHED, f"its records cannot be judged: {error!r}", "the files it writes")
            verdict = handouts.judge(verdict, files[question]) if handouts else verdict
        earned = points[question] if verdict.passed else 0.0
        grades[question] = Grade(verdict, earned, points[question], time.monotonic() - begin)
        print(f"    {verdict!r}".splitlines()[0], flush=True)
    return grades


def write_results(folder: Path, asked: list[str], grades: dict[str, dict[str, Grade]]):
    """Write the results of all students anew: an answer that is not shut in can have deleted those before it."""
    for student, row in grades.items():
        (folder / student).mkdir(parents=True, exist_ok=True)
        write_gradescope(folder / student / "results.json", row)
    write_csv(folder / "grades.csv", asked, grades)
    write_junit(folder / "junit.xml", grades)


def write_csv(path: Path, asked: list[str], grades: dict[str, dict[str, Grade]]):
    """A row for each student, and one for what could be had."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["student", *asked, "sum"])
        for student, row in grades.items():
            values = [row[question].points for question in asked]
            table.writerow([student, *(f"{value:g}" for value in values), f"{sum(values):g}"])


def write_junit(path: Path, grades: dict[str, dict[str, Grade]]):
    """A suite for each student, a case for each question; what did not pass is a failure with the grader's words."""
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
    """`text` without the characters that XML does not allow, which an answer may print."""
    return re.sub(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)


def write_gradescope(path: Path, row: dict[str, Grade]):
    """In the format of https://gradescope-autograders.readthedocs.io/en/latest/specs/, "Output format"."""
    tests = [
        {
            "name": f"{question} {load(question).title}",
            "number": question,
            "score": result.points,
            "max_score": result.of,
            "status": "passed" if result.verdict.passed else "failed",
            "output": repr(result.verdict),
        }
        for question, result in row.items()
    ]
    seconds = sum(result.seconds for result in row.values())
    path.write_text(json.dumps({"execution_time": round(seconds), "tests": tests}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    run_command(main)
