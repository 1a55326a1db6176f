"""Write a private set of exercises: for each question a script with a fault, which depends on the seed.

    make variant SEED=17 ARGS="--questions 02.1 05.3"        writes variants/17

handout/05_3.py is the right answer to question 05.3 with a fault that the grader is known to find (a wrong answer of
the exercise), its local names and some numbers changed. key/05_3.py is the same without the fault, for the teacher.
Students return the repaired script, and `python -m ddp_course.grader.batch ANSWERS --variant variants/17` grades it.
Each script is graded before it is written: key/ passes, handout/ fails. The public solution differs from the handout
in more lines than a repair may change.
"""

import argparse
import ast
import builtins
import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path

from ddp_course.authoring.answers import SOLUTION, WrongAnswer, graded, text_of, wrong_answers
from ddp_course.base.command import run_command
from ddp_course.base.errors import InputError
from ddp_course.base.parser import Parser
from ddp_course.grader.exercises import load, names
from ddp_course.grader.variant import DESCRIPTION, HANDOUT, changed_lines
from ddp_course.grader.verdict import WRONG

README = """# Find the fault

Each script does what the exercise of its name demands, but for one fault. Find the fault and repair it in the script.
The last column says how many lines of code you may remove and add in total. Comments are free.

| script | exercise | lines removed and added |
|---|---|---|
"""


@dataclass(frozen=True)
class Variant:
    """A variant of a question. handout, key: the script with the fault, and without it.

    lines: how many lines of code a repair may add and remove in total.
    """

    handout: str
    key: str
    fault: WrongAnswer
    lines: int


def main(arguments: list[str] | None = None) -> int:
    """The command line. Exit code 2 for bad input, or if a question named by --questions has no variant; else 0."""
    parser = Parser(
        prog="python -m ddp_course.authoring.variant",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("seed", type=int, help="chooses the faults, the names and the numbers")
    parser.add_argument("--questions", nargs="+", metavar="NN.K", help="default: all")
    parser.add_argument("--out", type=Path, help="a new folder; default: variants/SEED")
    try:
        options = parser.parse_args(arguments)
        chosen = [load(name).name for name in options.questions or names()]
        folder = options.out or Path("variants") / str(options.seed)
        if folder.exists():
            raise InputError(f"{folder} exists; --out names a folder that is not there yet")
        left_out = write(folder, options.seed, chosen)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 2 if options.questions and left_out else 0


def write(folder: Path, seed: int, questions: list[str]) -> list[str]:
    """Write the handout, the key, and the description for the grader; return the questions that have no variant.

    Raises InputError if no question has one; no folder is made then.
    """
    lines, faults, table, left_out = {}, {}, README, []
    for number, question in enumerate(questions, 1):
        print(f"{number} of {len(questions)}: {question}", flush=True)
        try:
            variant, file = make(question, seed), load(question).answer_name
        except InputError as error:
            print(f"left out: {error}", flush=True)
            left_out.append(question)
            continue
        for part in (HANDOUT, "key"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / HANDOUT / file).write_text(variant.handout, encoding="utf-8")
        (folder / "key" / file).write_text(variant.key, encoding="utf-8")
        lines[question], faults[question] = variant.lines, f"{variant.fault.name}: {variant.fault.does}"
        table += f"| `{file}` | {question} {load(question).title} | {variant.lines} |\n"
    if not lines:
        raise InputError("none of these questions has a variant")
    (folder / HANDOUT / "README.md").write_text(table, encoding="utf-8")
    description = {"seed": seed, "lines": lines, "faults": faults}
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {folder}: hand out {folder / HANDOUT}, keep the rest")
    return left_out


def make(question: str, seed: int) -> Variant:
    """The variant of `question` for `seed`: the first fault, in random order, whose scripts get the right verdicts.

    Raises InputError if there is none.
    """
    generator = random.Random(f"{seed} {question}")  # a string, so that no two pairs of a seed and a question coincide
    right = text_of(question, SOLUTION)
    faults = [answer for answer in wrong_answers(question) if answer.state == WRONG and answer.on == SOLUTION]
    generator.shuffle(faults)
    for fault in sorted(faults, key=lambda fault: not fault.edit):  # an edit first: its repair is short
        wrong = text_of(question, fault.name)
        suffix, numbers = f"_{generator.randrange(10, 100)}", generator.randrange(1, 1000)
        for new_numbers in (numbers, None):  # where the checks need a number as it is, all stay
            handout, key = disguise(wrong, right, suffix, new_numbers)
            lines = 2 * changed_lines(handout, key) + 2
            if changed_lines(handout, right) <= lines:
                break  # too close to the public solution: another fault
            wrong_verdict, right_verdict = graded({question: {"handout": handout, "key": key}})[question].values()
            if right_verdict.passed and (wrong_verdict.state, wrong_verdict.check) == (fault.state, fault.check):
                return Variant(handout, key, fault, lines)
    raise InputError(f"question {question} has no fault whose repair differs enough from the public solution")


def disguise(wrong: str, right: str, suffix: str, numbers: int | None) -> list[str]:
    """Both scripts without comments, each local name with `suffix`, and the numbers that occur in both changed.

    numbers: the seed of the new numbers; None: the numbers stay.
    """
    trees = [ast.parse(text) for text in (wrong, right)]
    local = set.union(*map(_local_names, trees)) - set.union(*map(_fixed_names, trees))
    values = [{node.value for node in ast.walk(tree) if _is_size(node)} for tree in trees]
    generator = random.Random(numbers)
    new_values = {value: value + generator.randint(1, value) for value in sorted(values[0] & values[1])}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id in local:
                node.id += suffix
            elif isinstance(node, ast.arg) and node.arg in local:
                node.arg += suffix
            elif numbers is not None and _is_size(node):
                node.value = new_values.get(node.value, node.value)
    return [ast.unparse(tree) + "\n" for tree in trees]


def _local_names(tree: ast.Module) -> set[str]:
    """Names bound by an assignment, a loop or a `with` inside a function, and parameters of inner functions."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda)]
    inside = {node for function in functions for node in ast.walk(function) if node is not function}
    stored = {node.id for node in inside if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    inner = [node for node in inside if isinstance(node, ast.FunctionDef | ast.Lambda)]
    return stored | {argument.arg for function in inner for argument in function.args.args}


def _fixed_names(tree: ast.Module) -> set[str]:
    """Names that must not change: of the module, imports, parameters of outer functions, keywords, built-ins."""
    nodes = list(ast.walk(tree))
    inside = {node for function in nodes if isinstance(function, ast.FunctionDef) for node in ast.walk(function)}
    of_module = {node.id for node in nodes if isinstance(node, ast.Name) and node not in inside}
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    imported = {alias.asname or alias.name.split(".")[0] for node in imports for alias in node.names}
    outer = [
        node for top in tree.body for node in [top, *getattr(top, "body", [])] if isinstance(node, ast.FunctionDef)
    ]
    parameters = {argument.arg for function in outer for argument in function.args.args}
    keywords = {node.arg for node in nodes if isinstance(node, ast.keyword)}
    shared = {name for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return of_module | imported | parameters | keywords | shared | defined | set(dir(builtins))


def _is_size(node: ast.AST) -> bool:
    """Whether the node is a whole number that may be a size or a seed: above 3, for smaller ones are often logic."""
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value > 3


if __name__ == "__main__":
    run_command(main)
