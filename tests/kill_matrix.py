"""Which check of the grader catches which wrong answer: python tests/kill_matrix.py   (make kill-matrix)

Runs every answer in tests/wrong_answers/ and tests/right_answers/, prints the table and writes it to
tests/KILL_MATRIX.md. An answer says in its first lines what it is:

    # mistake: averages the ranks' means          (a right one: # route: what is unlike in it)
    # state: wrong                                passed, wrong, not attempted, crashed
    # check: the mean is exact                    the check that has to object
    # message: the mean of the ranks' means       a part of what the learner has to read

`make kill-matrix ARGS=02` runs those of notebook 02 and writes nothing.
"""

import functools
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from ddp_course.lab import authoring
from ddp_course.lab.check import load, names
from ddp_course.lab.judge import grade
from ddp_course.lab.notebook_run import read_notebook, written_files
from ddp_course.lab.verdict import Verdict

TESTS = Path(__file__).parent
MATRIX = TESTS / "KILL_MATRIX.md"
HEADER = re.compile(r"# (mistake|route|state|check|message): (.*)")
INTRODUCTION = """# Which check of the grader catches which wrong answer

Written by `make kill-matrix`; a test runs the same answers and compares. Each check of a question has to catch at
least one of them. *raises*, *dies*, *leaves early*, *does not end* and *loses contact* belong to no question: any
answer can do that.
"""


def answers(kind: str, question: str) -> list[Path]:
    """The files in tests/wrong_answers/ or tests/right_answers/ for a question."""
    return sorted((TESTS / kind / question.replace(".", "_")).glob("*.py"))


def header(path: Path) -> dict[str, str]:
    """What an answer says about itself."""
    lines = path.read_text(encoding="utf-8").splitlines()[:4]
    return {match[1]: match[2] for line in lines if (match := HEADER.fullmatch(line))}


def answer_cells(folder: str, question: str) -> list[str]:
    """The text of each cell in solutions/ or exercises/ that writes the answer to `question`."""
    name = question.replace(".", "_") + ".py"
    return [
        text.rstrip("\n") + "\n"
        for path in authoring.select(authoring.ROOT, (folder,), [])
        for _, destination, text in written_files(read_notebook(path))
        if Path(destination).name == name
    ]


def verdicts(question: str, texts: dict[str, str]) -> dict[str, Verdict]:
    """Grade several answers to one question, {name: text}; each in a fresh file."""
    return graded({question: texts})[question]


def graded(texts: dict[str, dict[str, str]]) -> dict[str, dict[str, Verdict]]:
    """Grade answers to several questions, {question: {name: text}}, with two starts of the harness for all: it takes
    seconds to load torch, and while the one waits for an answer that hangs, the other computes."""
    with TemporaryDirectory() as folder:
        answers = []
        for question, named in texts.items():
            Path(folder, question).mkdir()
            for name, text in named.items():
                path = Path(folder, question, f"{name}.py")
                path.write_text(text, encoding="utf-8")
                answers.append((question, load(question), path))
        with ThreadPoolExecutor() as threads:
            halves = [iter(half) for half in threads.map(grade, (answers[::2], answers[1::2]))]
        results = (next(halves[number % 2]) for number in range(len(answers)))
    return {question: {name: next(results) for name in named} for question, named in texts.items()}


def table(question: str, results: dict[str, Verdict]) -> str:
    """The section of the matrix for one question; `results` of its wrong answers by name."""
    lines = [f"## {question} {load(question).TITLE}", "", "| wrong answer | what it does | state | check |"]
    lines.append("|---|---|---|---|")
    for path in answers("wrong_answers", question):
        verdict = results[path.stem]
        lines.append(f"| `{path.stem}` | {header(path)['mistake']} | {verdict.state} | {verdict.check or 'SURVIVES'} |")
    return "\n".join(lines) + "\n"


def all_texts(question: str) -> dict[str, str]:
    """Every wrong answer, and the right ones by another route (right_...)."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in answers("wrong_answers", question)}
    texts |= {f"right_{path.stem}": path.read_text(encoding="utf-8") for path in answers("right_answers", question)}
    return texts


@functools.cache
def all_verdicts(start: str) -> dict[str, dict[str, Verdict]]:
    """{question: {name: verdict}} of all_texts, for the questions whose name begins with `start`: "04", "04.2"."""
    return graded({question: all_texts(question) for question in names() if question.startswith(start)})


def main(start: str = "") -> int:
    tables, survivors = [], []
    for question in (name for name in names() if name.startswith(start)):
        results = all_verdicts(start if len(start) > 2 else question[:2])[question]
        tables.append(table(question, results))
        print(tables[-1])
        wrong = {path.stem for path in answers("wrong_answers", question)}
        for name, verdict in results.items():
            print(f"{name}: {verdict}")
            if verdict.passed == (name in wrong):
                survivors.append(f"{question} {name}")
    if not start:
        MATRIX.write_text("\n".join([INTRODUCTION, *tables]), encoding="utf-8")
    if survivors:
        print(f"judged wrongly: {', '.join(survivors)}", file=sys.stderr)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
