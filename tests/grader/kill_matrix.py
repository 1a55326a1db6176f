"""Which check of the grader catches which wrong answer.

make kill-matrix                  grades every answer of tests/grader/answers/, prints the table and writes it to
                                  tests/grader/KILL_MATRIX.md
make kill-matrix ARGS=02          those of notebook 02, or of question 02.1; writes their sections alone
python -m tests.grader.kill_matrix --write 05_3 rotates
                                  writes one answer out as a file, to read it whole and to run it by hand
"""

import argparse
import functools
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from ddp_course.base.errors import InputError
from ddp_course.grader.check import load, names
from ddp_course.grader.judge import grade
from ddp_course.grader.verdict import Verdict

from .edited import Mistake, answers, mistakes, routes, text_of

MATRIX = Path(__file__).parent / "KILL_MATRIX.md"
INTRODUCTION = """# Which check of the grader catches which wrong answer

Written by `make kill-matrix`; tests run the same answers and compare. Each check of a question has to catch at least
one of them. *raises*, *dies*, *leaves early*, *does not end*, *loses contact* and *changes what it sends*
belong to no question: any answer can do that.
"""


def verdicts(question: str, texts: dict[str, str]) -> dict[str, Verdict]:
    """Grade several answers to one question, {name: text}; each in a fresh file."""
    return graded({question: texts})[question]


def graded(texts: dict[str, dict[str, str]]) -> dict[str, dict[str, Verdict]]:
    """Grade answers to several questions, {question: {name: text}}, with one start of the harness for all: it takes
    seconds to load torch. In two lanes: while the one waits for an answer that hangs, the other computes."""
    with TemporaryDirectory() as folder:
        files = []
        for question, named in texts.items():
            Path(folder, question).mkdir()
            for name, text in named.items():
                path = Path(folder, question, f"{name}.py")
                path.write_text(text, encoding="utf-8")
                files.append((question, load(question), path))
        results = iter(grade(files, lanes=2))
    return {question: {name: next(results) for name in named} for question, named in texts.items()}


def one_for_each_check(question: str) -> list[Mistake]:
    """The first wrong answer that each check has to catch: enough to see that every check works."""
    return list({mistake.check: mistake for mistake in reversed(mistakes(question))}.values())


@functools.cache
def all_verdicts(start: str, every: bool = True) -> dict[str, dict[str, Verdict]]:
    """{question: {name: verdict}} of the answers to the questions whose name begins with `start`: "04", "04.2".

    every: of all answers; otherwise of the right ones, and of one wrong answer for each check.
    """
    chosen = {
        question: answers(question) if every else [one.name for one in one_for_each_check(question) + routes(question)]
        for question in names()
        if question.startswith(start)
    }
    return graded({question: {name: text_of(question, name) for name in named} for question, named in chosen.items()})


def table(question: str, caught: dict[str, tuple[str, str | None]]) -> str:
    """The section of the matrix for one question; `caught` has state and check of its wrong answers by name."""
    lines = [f"## {question} {load(question).TITLE}", "", "| wrong answer | what it does | state | check |"]
    lines.append("|---|---|---|---|")
    for mistake in mistakes(question):
        state, check = caught[mistake.name]
        lines.append(f"| `{mistake.name}` | {mistake.does} | {state} | {check or 'SURVIVES'} |")
    return "\n".join(lines) + "\n"


def written_tables() -> dict[str, str]:
    """{question: its section of the matrix as it is written down}"""
    sections = MATRIX.read_text(encoding="utf-8").split("\n## ")[1:]
    return {section[:4]: f"## {section.rstrip()}\n" for section in sections}


def write(question: str, name: str) -> Path:
    """Write one answer to runs/answers/05_3_rotates.py and return that path."""
    known = list(answers(question))
    if name not in known:
        raise InputError(f"question {question} has no answer {name!r}; there are {', '.join(known)}")
    path = Path("runs/answers") / f"{question.replace('.', '_')}_{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text_of(question, name), encoding="utf-8")
    return path


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("start", nargs="?", default="", help="such as 02 or 02.1; default: all questions")
    parser.add_argument("--write", nargs=2, metavar=("QUESTION", "NAME"), help="write this answer to runs/answers/")
    options = parser.parse_args(arguments)
    try:
        if options.write:
            question, name = options.write[0].replace("_", "."), options.write[1]
            load(question)  # or say which questions there are
            path = write(question, name)
            print(f"{path}\nTo grade it: python -m ddp_course.grader.check {question} {path}")
            return 0
        return grade_all(options.start.replace("_", "."))
    except InputError as error:
        print(error, file=sys.stderr)
        return 1


def grade_all(start: str) -> int:
    """Print and write the sections of the questions that begin with `start`; 1 if an answer was misjudged."""
    tables, misjudged = {}, []
    for question in (name for name in names() if name.startswith(start)):
        results = all_verdicts(start if len(start) > 2 else question[:2])[question]
        tables[question] = table(question, {name: (verdict.state, verdict.check) for name, verdict in results.items()})
        print(tables[question])
        wrong = {mistake.name for mistake in mistakes(question)}
        for name, verdict in results.items():
            print(f"{name}: {verdict}")
            if verdict.passed == (name in wrong):
                misjudged.append(f"{question} {name}")
    tables = written_tables() | tables
    kept = [tables[question] for question in names() if question in tables]
    MATRIX.write_text("\n".join([INTRODUCTION, *kept]), encoding="utf-8")
    if misjudged:
        print(f"judged wrongly: {', '.join(misjudged)}", file=sys.stderr)
    return 1 if misjudged else 0


if __name__ == "__main__":
    sys.exit(main())
