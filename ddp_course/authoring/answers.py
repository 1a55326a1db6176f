"""Wrong and right answers to the exercises, written as edits of the solution or of another answer.

solutions/05_sharding_data/3/wrong.py holds ANSWERS, the answers to exercise 05.3. The `edit` of each reads as a diff:

     def save(folder, step, state):          context: an unchanged line, where the others are not unique
    -    if dist.get_rank() == 0:            a removed line
    +    if dist.get_rank() == 1:            an added line
    @@                                       between two hunks

It is applied to the solution (the cell of solutions/), or to what `on` names: "given", the script that the question
hands out, or another answer to the same question. An answer of another design has its whole `text` instead.
"""

import functools
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent

from ddp_course.authoring.commands import ROOT, select
from ddp_course.authoring.notebook_run import read_notebook
from ddp_course.base.errors import InputError
from ddp_course.grader.exercises import load
from ddp_course.grader.judge import grade
from ddp_course.grader.verdict import Verdict
from ddp_course.lab.source import written_files

SOLUTION, GIVEN = "solution", "given"
SOLUTION_MARKS = ("### BEGIN SOLUTION", "### END SOLUTION")


@dataclass(frozen=True)
class Answer:
    """An answer to a question. does: a sentence on what it does. Its text is `edit` applied to `on`, or `text`."""

    name: str
    does: str
    _: KW_ONLY
    on: str = SOLUTION
    edit: str = ""
    text: str = ""


@dataclass(frozen=True)
class WrongAnswer(Answer):
    """A wrong answer, with the expected verdict: its state, the check that fails, the message and the hint `look`."""

    check: str
    says: str
    look: str = ""
    state: str = "wrong"


@dataclass(frozen=True)
class RightAnswer(Answer):
    """A right answer other than the solution; `does` describes the difference."""


@functools.cache
def answers(question: str) -> dict[str, Answer]:
    """Every answer to `question` by name, in the order of wrong.py."""
    module = load(question).module("wrong")
    named = {answer.name: answer for answer in module.ANSWERS}
    if len(named) < len(module.ANSWERS):
        raise InputError(f"{module.__name__} has two answers of one name; each needs a name of its own")
    return named


def wrong_answers(question: str) -> list[WrongAnswer]:
    """The wrong answers to `question`."""
    return [answer for answer in answers(question).values() if isinstance(answer, WrongAnswer)]


def right_answers(question: str) -> list[RightAnswer]:
    """The right answers to `question`, without the solution."""
    return [answer for answer in answers(question).values() if isinstance(answer, RightAnswer)]


def text_of(question: str, name: str) -> str:
    """The whole text of an answer, or of "solution" or "given". Raises InputError where an edit does not fit."""
    if name == SOLUTION:
        [cell] = answer_cells("solutions", question)
        return "".join(line for line in cell.splitlines(keepends=True) if line.strip() not in SOLUTION_MARKS)
    if name == GIVEN:
        return load(question).given_script.read_text(encoding="utf-8")
    answer = answers(question)[name]
    if answer.text:
        return dedent(answer.text).lstrip("\n")
    try:
        return edited(text_of(question, answer.on), answer.edit)
    except InputError as error:
        raise InputError(f"{question} {name}, an edit of {answer.on!r}: {error}") from None


def edited(base: str, edit: str) -> str:
    """`base` with each hunk of `edit` applied, one after the other; see the top of this file for how an edit reads.

    Raises InputError unless the unchanged and removed lines of each hunk occur once, as consecutive lines.
    """
    lines = base.splitlines()
    for hunk in dedent(edit).strip("\n").split("\n@@\n"):
        changes = [line or " " for line in hunk.split("\n")]
        if bad := [line for line in changes if line[0] not in " -+"]:
            raise InputError(f"a line of an edit begins with ' ', '-', '+' or is '@@', not {bad[0]!r}")
        old = [line[1:] for line in changes if line[0] in " -"]
        new = [line[1:] for line in changes if line[0] in " +"]
        starts = [start for start in range(len(lines)) if lines[start : start + len(old)] == old]
        if not old or old == new or len(starts) != 1:
            problem = "changes nothing" if old == new else f"stands there {len(starts)} times, not once"
            raise InputError(f"{problem}:\n" + "\n".join(old))
        lines[starts[0] : starts[0] + len(old)] = new
    return "\n".join(lines) + "\n"


@functools.cache
def answer_cells(folder: str, question: str) -> list[str]:
    """The text of each cell in `folder`, solutions or exercises, that writes the answer to `question`."""
    name = load(question).answer_name
    return [
        text.rstrip("\n") + "\n"
        for path in select(ROOT, (folder,), [name[:2]])
        for _, destination, text in written_files(read_notebook(path))
        if Path(destination).name == name
    ]


def graded(texts: dict[str, dict[str, str]]) -> dict[str, dict[str, Verdict]]:
    """Grade answers to several questions, {question: {name: text}}; returns {question: {name: verdict}}.

    The harness starts once for all answers, because it takes seconds to load torch. Two answers run at a time: while
    one hangs, the other computes.
    """
    with TemporaryDirectory() as folder:
        files = []
        for question, named in texts.items():
            Path(folder, question).mkdir()
            for name, text in named.items():
                path = Path(folder, question, f"{name}.py")
                path.write_text(text, encoding="utf-8")
                files.append((load(question), path))
        results = iter(grade(files, lanes=2))
    return {question: {name: next(results) for name in named} for question, named in texts.items()}
