"""Grade the repair of a script that was handed out: it has to pass the checks and change few lines of the script.

`make variant SEED=17` (ddp_course/authoring/variant.py) writes such scripts. The checks are those of the public
exercise, which the published solution passes, too. That is refused, because it changes too many lines of the script.
"""

import ast
import difflib
import json
from dataclasses import dataclass
from pathlib import Path

from ddp_course.base.errors import InputError
from ddp_course.grader.exercises import load
from ddp_course.grader.verdict import WRONG, Verdict

DESCRIPTION, HANDOUT = "variant.json", "handout"  # a file and a folder that `make variant` writes


def changed_lines(handout: str, answer: str) -> int:
    """The number of removed and added lines of code between two scripts; comments and formatting do not count."""
    old, new = (ast.unparse(ast.parse(text)).splitlines() for text in (handout, answer))
    return sum(line[0] in "-+" for line in difflib.ndiff(old, new))


@dataclass(frozen=True)
class Handouts:
    """A folder with the scripts that were handed out, and for each question how many lines a repair may change."""

    folder: Path
    allowed_changes: dict[str, int]

    def judge(self, verdict: Verdict, answer: Path) -> Verdict:
        """`verdict`; but the verdict "wrong" if it passed and `answer` changes more lines than a repair may."""
        if not verdict.passed:
            return verdict
        handout = self.folder / HANDOUT / load(verdict.question).answer_name
        changed = changed_lines(handout.read_text(encoding="utf-8"), answer.read_text(encoding="utf-8"))
        allowed = self.allowed_changes[verdict.question]
        if changed <= allowed:
            return verdict
        observed = f"{changed} lines of code differ from the script that was handed out; at most {allowed} may"
        look = "the script as it was handed out: repair it, keep the rest"
        return Verdict(verdict.question, WRONG, observed, look, HANDOUT)


def read_handouts(folder: Path) -> Handouts:
    """Read the description of a folder that `make variant` wrote. Raises InputError if it holds none."""
    try:
        return Handouts(folder, json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))["lines"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"there is no variant in {folder}: make variant writes {DESCRIPTION} there") from None
