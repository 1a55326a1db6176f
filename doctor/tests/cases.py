"""Runs the doctor's example scripts under `doctor run`, and compares its verdicts with the scripts' headers.

A script in sick/ has one defect. Its header names the ranks to blame and words of the verdict, `# HERE` marks the line:

    # rank: 1
    # says: never joined all-reduce

    python doctor/tests/cases.py                    # examines all, and writes doctor/tests/MATRIX.md
    python doctor/tests/cases.py raises stopped     # examines these, and prints their pages
"""

import contextlib
import importlib.util
import io
import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ddp_doctor.diagnosis import diagnose
from ddp_doctor.job import Job
from ddp_doctor.page import page
from ddp_doctor.verdict import Verdict
from ddp_doctor.watch import run_and_watch

FOLDER = Path(__file__).parent
MATRIX = FOLDER / "MATRIX.md"
CHECK_HEADING = "## `doctor check`"  # check_cases.py writes the part of MATRIX.md below it
WORKERS = 2  # cases at the same time: they mostly wait
HEADER = """# The doctor on scripts it does not know

Written by `make doctor-matrix`: two ranks each, on a CPU, `--idle 3`. A sick script has one defect; right is a verdict
that names its rank and its line.

"""


@dataclass(frozen=True)
class Case:
    """One example script. needs: a package without which it is not run. The other facts: see the module."""

    path: Path
    ranks: tuple[int, ...] = ()
    says: str = ""
    line: int | None = None
    needs: str = ""
    nproc: int = 2

    @property
    def sick(self) -> bool:
        return self.path.parent.name == "sick"


def header_and_line(path: Path) -> tuple[dict[str, str], int | None]:
    """The header of a script, such as {"rank": "1"}, and the number of its line marked `# HERE`."""
    text = path.read_text()
    marked = (number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# HERE"))
    return dict(re.findall(r"^# (\w+): (.*)$", text, re.MULTILINE)), next(marked, None)


def case(path: Path) -> Case:
    """The case of a script, from its header."""
    header, line = header_and_line(path)
    ranks = tuple(int(number) for number in header.get("rank", "").split())
    return Case(path, ranks, header.get("says", ""), line, header.get("needs", ""), int(header.get("nproc", 2)))


def cases(kind: str) -> dict[str, Case]:
    """{name: case} of a folder. kind: "sick" or "healthy"."""
    return {path.stem: case(path) for path in sorted((FOLDER / kind).glob("*.py"))}


def examine(case: Case, idle: float = 3.0) -> tuple[Job, Verdict, str]:
    """Runs the script on `case.nproc` ranks under the doctor; returns what was seen, the verdict and the page."""
    with contextlib.redirect_stdout(io.StringIO()):
        end_after = idle if case.sick else None  # healthy jobs may stand still for any time
        job = run_and_watch(case.path, [], case.nproc, idle, timeout=600, end_after=end_after)
    verdict = diagnose(job)
    return job, verdict, page(job, verdict)


def wrong(case: Case, verdict: Verdict) -> list[str]:
    """What is wrong with the verdict, one sentence each; [] if it is right."""
    if not case.sick:
        return [f"an alarm on a healthy script: {verdict.sentence}"] if verdict.alarm else []
    problems = []
    if not verdict.alarm:
        problems.append("no alarm")
    if set(verdict.ranks) != set(case.ranks):
        problems.append(f"blames {verdict.ranks}, not {case.ranks}")
    if case.says not in verdict.sentence:
        problems.append(f"does not say {case.says!r}")
    if case.line and not re.search(rf"{case.path.name}:{case.line}\b", verdict.sentence):
        problems.append(f"does not name line {case.line}")
    return problems


def row(case: Case) -> tuple[str, str, bool]:
    """The row of the table, the page, and whether the verdict is right. True also for a case that was not examined."""
    name = case.path.stem
    if case.needs and importlib.util.find_spec(case.needs) is None:
        return f"| {name} | not examined: {case.needs} is not installed | | |", "", True
    job, verdict, text = examine(case)
    problems = wrong(case, verdict)
    judged = "right" if not problems else f"WRONG: {'; '.join(problems)}"
    sentence = verdict.sentence.replace(f"{os.path.relpath(case.path.parent)}/", "").replace("|", "\\|")
    return f"| {name} | {judged} | {job.seconds:.0f} s | {sentence} |", text, not problems


def main(names: list[str]) -> int:
    """Examines the named cases, or all and writes MATRIX.md; returns how many verdicts were wrong."""
    text, failures = HEADER, 0
    with ProcessPoolExecutor(WORKERS) as workers:
        for kind in ("sick", "healthy"):
            chosen = [case for name, case in cases(kind).items() if not names or name in names]
            rows = []
            for line, shown, right in workers.map(row, chosen):
                rows.append(line)
                failures += not right
                print(f"{line}\n\n{shown}\n" if names else line, flush=True)
            text += f"## {kind.capitalize()}: {sum('| right |' in line for line in rows)} of {len(rows)} right\n\n"
            text += "| script | verdict | after | in its words |\n|---|---|---|---|\n" + "\n".join(rows) + "\n\n"
    if not names:
        below = MATRIX.read_text().partition(CHECK_HEADING)[2]
        MATRIX.write_text(f"{text}{CHECK_HEADING}{below}")
        print(f"wrote {os.path.relpath(MATRIX)}")
    return failures


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
