"""Which check of the grader catches which wrong answer.

make kill-matrix                  grades every answer of solutions/*/*/wrong.py and prints the table
make kill-matrix ARGS=02          those of notebook 02, or of exercise 02.1
python -m tests.grader.kill_matrix --write 05_3 rotates
                                  writes one answer out as a file, to read it whole and to run it by hand
python -m tests.grader.kill_matrix 05.3 --save before.json
                                  keeps the verdicts, and after a change of the checks
python -m tests.grader.kill_matrix 05.3 --compare before.json
                                  names each answer whose verdict or words differ from those
"""

import argparse
import functools
import json
import sys
from pathlib import Path

from ddp_course.authoring.answers import Answer, WrongAnswer, answers, graded, right_answers, text_of, wrong_answers
from ddp_course.base.errors import InputError
from ddp_course.grader.exercises import load, names
from ddp_course.grader.verdict import Verdict


def sample(question: str) -> list[str]:
    """The names of a wrong answer to the first check, of one to the last, and of a right answer.

    Enough to see that the exercise grades. All the others take four times as long, and are graded weekly.
    """
    wrong = list({answer.check: answer.name for answer in wrong_answers(question)}.values())
    return [*dict.fromkeys([wrong[0], wrong[-1]]), right_answers(question)[0].name]


@functools.cache
def all_verdicts(start: str, every: bool = True) -> dict[str, dict[str, Verdict]]:
    """{question: {name: verdict}} of the answers to the questions whose name begins with `start`: "04", "04.2".

    every: of all answers, otherwise of a sample.
    """
    chosen = {
        question: answers(question) if every else sample(question) for question in names() if question.startswith(start)
    }
    return graded({question: {name: text_of(question, name) for name in named} for question, named in chosen.items()})


def table(question: str, results: dict[str, Verdict]) -> str:
    """The wrong answers to one question, each with the state and the check of its verdict in `results`."""
    lines = [f"## {question} {load(question).title}", "", "| wrong answer | what it does | state | check |"]
    lines.append("|---|---|---|---|")
    for answer in wrong_answers(question):
        verdict = results[answer.name]
        lines.append(f"| `{answer.name}` | {answer.does} | {verdict.state} | {verdict.check or 'SURVIVES'} |")
    return "\n".join(lines) + "\n"


def misjudgement(answer: Answer, verdict: Verdict) -> str:
    """The fault of a verdict; "" if a right answer passed, or a wrong one was refused as its entry says."""
    if not isinstance(answer, WrongAnswer):
        return "" if verdict.passed else f"a right answer does not pass: {verdict!r}"
    if verdict.passed:
        return f"it survives: {answer.does}"
    if (verdict.state, verdict.check) != (answer.state, answer.check):
        return f"{verdict.state} by {verdict.check!r}, not {answer.state} by {answer.check!r}: {verdict!r}"
    if answer.says not in verdict.observed or answer.look not in verdict.look:
        return f"it does not say {answer.says!r} and {answer.look!r}: {verdict!r}"
    return "" if verdict.look and verdict.look not in verdict.observed else f"it names no place to look at: {verdict!r}"


def as_texts(results: dict[str, dict[str, Verdict]]) -> dict[str, dict[str, str]]:
    """{question: {name: its verdict and all words of it, but not the name of the check}}"""
    return {question: {name: repr(verdict) for name, verdict in named.items()} for question, named in results.items()}


def differences(old: dict[str, dict[str, str]], new: dict[str, dict[str, str]]) -> list[str]:
    """Each answer that both have, with its two verdicts where they differ."""
    return [
        f"{question} {name}\n--- {old[question][name]}\n+++ {text}"
        for question, named in new.items()
        for name, text in named.items()
        if text != old.get(question, {}).get(name, text)
    ]


def write(question: str, name: str) -> Path:
    """Write one answer to runs/answers/05_3_rotates.py and return that path."""
    answer_names = list(answers(question))
    if name not in answer_names:
        raise InputError(f"question {question} has no answer {name!r}; there are {', '.join(answer_names)}")
    path = Path("runs/answers") / f"{question.replace('.', '_')}_{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text_of(question, name), encoding="utf-8")
    return path


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("start", nargs="?", default="", help="such as 02 or 02.1; default: all questions")
    parser.add_argument("--write", nargs=2, metavar=("QUESTION", "NAME"), help="write this answer to runs/answers/")
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep the verdicts in this file")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="compare with the verdicts in this file")
    options = parser.parse_args(arguments)
    try:
        if options.write:
            question, name = options.write[0].replace("_", "."), options.write[1]
            load(question)  # or say which questions there are
            path = write(question, name)
            print(f"{path}\nTo grade it: python -m ddp_course.grader.check {question} {path}")
            return 0
        start = options.start.replace("_", ".")
        if options.save:
            options.save.write_text(json.dumps(as_texts(all_verdicts(start)), indent=1))
            return 0
        if options.compare:
            changes = differences(json.loads(options.compare.read_text()), as_texts(all_verdicts(start)))
            print("\n\n".join(changes) or "every verdict is the same, to the word")
            return 1 if changes else 0
        return grade_all(start)
    except InputError as error:
        print(error, file=sys.stderr)
        return 1


def grade_all(start: str) -> int:
    """Print the tables of the exercises that begin with `start`; 1 if an answer was misjudged."""
    misjudged = []
    for question in (name for name in names() if name.startswith(start)):
        # A notebook at a time, so that its tables are printed before the next one is graded.
        results = all_verdicts(start if len(start) > 2 else question[:2])[question]
        print(table(question, results))
        for name, verdict in results.items():
            print(f"{name}: {verdict}")
            if problem := misjudgement(answers(question)[name], verdict):
                misjudged.append(f"{question} {name}: {problem}")
    if misjudged:
        print("judged wrongly:", *misjudged, sep="\n  ", file=sys.stderr)
    return 1 if misjudged else 0


if __name__ == "__main__":
    sys.exit(main())
