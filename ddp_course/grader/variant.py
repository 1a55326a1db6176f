"""Grade the repair of a script that was handed out: it passes the checks, and is that script but for its fault.

`make variant SEED=17` (ddp_course/authoring/variant.py) writes such scripts. The checks are those of the public
exercise, so that its public solution would pass them: it is refused for not being the script that was handed out.
"""

import ast
import difflib
import json
from pathlib import Path

from ddp_course.base.errors import InputError
from ddp_course.grader.verdict import WRONG, Verdict

DESCRIPTION = "variant.json"


def changed_lines(handout: str, answer: str) -> int:
    """How many lines of code go and come between two scripts; comments and the way a line is broken do not count."""
    old, new = (ast.unparse(ast.parse(text)).splitlines() for text in (handout, answer))
    return sum(line[0] in "-+" for line in difflib.ndiff(old, new))


def read_variant(folder: Path) -> dict[str, int]:
    """How many lines may change, by question. Raises InputError if `make variant` did not write `folder`."""
    try:
        return json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))["lines"]
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"there is no variant in {folder}: make variant writes {DESCRIPTION} there") from None


def judge_repair(verdict: Verdict, answer: Path, folder: Path) -> Verdict:
    """`verdict` on `answer`, or another if it passed and is not the script handed out in `folder` but for its fault."""
    if not verdict.passed:
        return verdict
    allowed = read_variant(folder)[verdict.question]
    handout = folder / "handout" / f"{verdict.question.replace('.', '_')}.py"
    changed = changed_lines(handout.read_text(encoding="utf-8"), answer.read_text(encoding="utf-8"))
    if changed <= allowed:
        return verdict
    observed = f"{changed} lines of code differ from the script that was handed out; at most {allowed} may"
    return Verdict(
        verdict.question, WRONG, observed, "the script as it was handed out: repair it, keep the rest", "handout"
    )
