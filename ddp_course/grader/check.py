"""Grade the answer to an exercise question by running it on several ranks and checking what it does.

In a notebook      check("02.1")   grades answers/02_1.py        hint("02.1")   the next hint at each call
In a shell         python -m ddp_course.grader.check 02.1 path/to/answer.py        --hint 2   the second hint
Exit codes         0 passed, 1 wrong, 2 not attempted, 3 crashed, 4 not graded, 64 the command was wrong
"""

import gc

if __name__ == "__main__":
    gc.disable()  # this process ends soon, and a collection would go through all of torch

import argparse
import atexit
import os
import shutil
import sys
from pathlib import Path

from ddp_course.base.command import run_command
from ddp_course.base.errors import InputError
from ddp_course.base.parser import Parser
from ddp_course.grader.answer_record import JobRecord
from ddp_course.grader.exercises import load
from ddp_course.grader.judge import grade
from ddp_course.grader.progress import note
from ddp_course.grader.verdict import Hint, NotPassed, Verdict
from ddp_course.grader.warm_up import STRICT_VARIABLE

BAD_COMMAND = 64  # as in sysexits.h; argparse's own 2 means "not attempted" here

_hints_given: dict[str, int] = {}


def check(name: str, path: str | Path | None = None, *, strict: bool | None = None) -> Verdict:
    """Grade the answer to question `name`, such as "02.1", in the file `path`, by default answers/02_1.py.

    Takes a few seconds, and about a minute at most, whatever the answer does (longer on a machine that is busy). No
    process that the answer starts survives.
    strict: raise NotPassed unless the answer passed. By default, only if the variable DDP_COURSE_STRICT is set.
    Raises InputError for a question that does not exist.
    """
    exercise = load(name)
    path = Path(path) if path else Path("answers") / exercise.answer_name
    [verdict] = grade([(exercise, path)])
    note("checked", question=name, state=verdict.state)
    strict = bool(os.environ.get(STRICT_VARIABLE)) if strict is None else strict
    if strict and not verdict.passed:
        raise NotPassed(verdict)
    return verdict


def run_variants(name: str, script: str | Path) -> list[JobRecord]:
    """Run `script` as the jobs BROKEN of question `name`, whose checks.py must have them; return a record of each."""
    exercise = load(name)
    return exercise.run(script, exercise.module("checks").BROKEN)


def hint(name: str) -> Hint:
    """The next hint to question `name`; after the last hint, the last one again."""
    exercise = load(name)
    _hints_given[name] = min(_hints_given.get(name, 0) + 1, len(exercise.hints))
    return exercise.hint(_hints_given[name])


def given_script(name: str) -> Path:
    """Copy the script that question `name` hands out into the folder scripts, and return the path of the copy.

    Raises InputError if the question has no such script.
    """
    script = load(name).given_script
    if script is None:
        raise InputError(f"question {name} comes without a script")
    target = Path("scripts") / f"{name.replace('.', '_')}_given.py"
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(script, target)
    return target


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = Parser(
        prog="python -m ddp_course.grader.check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("question", help="such as 02.1")
    parser.add_argument("answer", nargs="?", type=Path, help="the file to grade; default: answers/02_1.py")
    parser.add_argument("--hint", nargs="?", type=int, const=1, metavar="N", help="show hint N (1 if left out) instead")
    try:
        options = parser.parse_args(arguments)
        if options.hint is not None:
            print(load(options.question).hint(options.hint))
            return 0
        verdict = check(options.question, options.answer, strict=False)
    except InputError as error:
        print(error, file=sys.stderr)
        return BAD_COMMAND
    print(verdict)
    return verdict.exit_code


if __name__ == "__main__":
    atexit.register(gc.freeze)  # otherwise the collection at exit would go through all of torch
    run_command(main)
