"""The scripts of the doctor's tests: what each one's header says, and what the doctor says of it.

A sick script has one defect. Its header names the ranks to blame and words of the verdict, `# HERE` marks the line:

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

from ddp_doctor.diagnosis import Verdict, diagnose
from ddp_doctor.job import Job
from ddp_doctor.page import page
from ddp_doctor.watch import run_and_watch

FOLDER = Path(__file__).parent
MATRIX = FOLDER / "MATRIX.md"
OF_CHECK = "## `doctor check`"  # what stands below is written by check_cases.py
AT_ONCE = 2  # they mostly wait
HEADER = """# The doctor on scripts it does not know

Written by `make doctor-matrix`: two ranks each, on a CPU, `--idle 3`. A sick script has one defect; right is a verdict
that names its rank and its line.

"""


@dataclass(frozen=True)
class Case:
    path: Path
    ranks: tuple[int, ...] = ()
    says: str = ""
    line: int | None = None
    needs: str = ""
    nproc: int = 2

    @property
    def sick(self) -> bool:
        return self.path.parent.name == "sick"


def case(path: Path) -> Case:
    text = path.read_text()
    header = dict(re.findall(r"^# (\w+): (.*)$", text, re.MULTILINE))
    here = [number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# HERE")]
    ranks = tuple(int(number) for number in header.get("rank", "").split())
    here = here[0] if here else None
    return Case(path, ranks, header.get("says", ""), here, header.get("needs", ""), int(header.get("nproc", 2)))


def cases(kind: str) -> dict[str, Case]:
    """kind: "sick" or "healthy"."""
    return {path.stem: case(path) for path in sorted((FOLDER / kind).glob("*.py"))}


def examine(case: Case, idle: float = 3.0) -> tuple[Job, Verdict, str]:
    """Two ranks run it under the doctor's eyes: what was seen, the verdict, and the page."""
    with contextlib.redirect_stdout(io.StringIO()):
        end_after = idle if case.sick else None  # sound jobs are left to themselves, however long they take
        job = run_and_watch(case.path, [], case.nproc, idle, timeout=600, end_after=end_after)
    verdict = diagnose(job)
    return job, verdict, page(job, verdict)


def wrong(case: Case, verdict: Verdict) -> list[str]:
    """The problems of the verdict; [] if there are none."""
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
    """The row of the table, the page, and whether the verdict is right."""
    name = case.path.stem
    if case.needs and importlib.util.find_spec(case.needs) is None:
        return f"| {name} | not examined: {case.needs} is not installed | | |", "", True
    job, verdict, shown = examine(case)
    problems = wrong(case, verdict)
    judged = "right" if not problems else f"WRONG: {'; '.join(problems)}"
    sentence = verdict.sentence.replace(f"{os.path.relpath(case.path.parent)}/", "").replace("|", "\\|")
    return f"| {name} | {judged} | {job.seconds:.0f} s | {sentence} |", shown, not problems


def main(names: list[str]) -> int:
    """Returns how many verdicts were wrong."""
    text, failures = HEADER, 0
    with ProcessPoolExecutor(AT_ONCE) as workers:
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
        below = MATRIX.read_text().partition(OF_CHECK)[2] if MATRIX.exists() else ""
        MATRIX.write_text(f"{text}{OF_CHECK}{below}" if below else text.rstrip() + "\n")
        print(f"wrote {os.path.relpath(MATRIX)}")
    return failures


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
