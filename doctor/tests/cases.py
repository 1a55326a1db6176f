"""Runs the doctor's example scripts under `doctor run`, and compares its verdicts with the scripts' headers.

A script in sick/ has one defect. Its header names the ranks to blame and words of the verdict, `# HERE` marks the line:

    # rank: 1
    # says: never joined all-reduce
    # needs: accelerate      (a package without which it is not run)
    # nproc: 1               (it starts its own ranks)

    python doctor/tests/cases.py                    # examines all, and writes their part of doctor/tests/MATRIX.md
    python doctor/tests/cases.py raises stopped     # examines these, and prints their pages
"""

import contextlib
import importlib.util
import io
import os
import re
import sys
from collections.abc import Iterable
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
    """One example script: the line marked `# HERE`, and the facts of its header (see here, and in check_cases.py)."""

    path: Path
    line: int | None
    rank: str = ""
    says: str = ""
    needs: str = ""
    nproc: str = "2"
    check: str = ""
    status: str = "wrong"
    runs: str = "1"

    @property
    def sick(self) -> bool:
        return self.path.parent.name == "sick"

    @property
    def ranks(self) -> set[int]:
        """Those to blame."""
        return set(map(int, self.rank.split()))

    @property
    def missing(self) -> bool:
        """Is the package that the script needs not installed?"""
        return bool(self.needs) and importlib.util.find_spec(self.needs) is None

    def without_folder(self, text: str) -> str:
        """The text with the script's own path as its name alone, for a cell of a table."""
        return text.replace(f"{os.path.relpath(self.path.parent)}/", "").replace("|", "\\|")


def case(path: Path) -> Case:
    """The case of a script, from its header, such as "# rank: 1", and its line marked `# HERE`."""
    text = path.read_text()
    marked = (number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# HERE"))
    return Case(path, next(marked, None), **dict(re.findall(r"^# (\w+): (.*)$", text, re.MULTILINE)))


def cases(*kinds: str) -> dict[str, Case]:
    """{name: case} of the folders. kinds: "sick", "healthy", "silent" or "sound"."""
    return {path.stem: case(path) for kind in kinds for path in sorted((FOLDER / kind).glob("*.py"))}


def examine(case: Case, idle: float = 3.0) -> tuple[Job, Verdict, str]:
    """Runs the script on `case.nproc` ranks under the doctor; returns what was seen, the verdict and the page."""
    with contextlib.redirect_stdout(io.StringIO()):
        end_after = idle if case.sick else None  # healthy jobs may stand still for any time
        job = run_and_watch(case.path, [], int(case.nproc), idle, timeout=600, end_after=end_after)
    verdict = diagnose(job)
    return job, verdict, page(job, verdict)


def wrong(case: Case, verdict: Verdict) -> list[str]:
    """The faults of the verdict, one sentence each; [] if it is right."""
    if not case.sick:
        return [f"an alarm on a healthy script: {verdict.sentence}"] if verdict.alarm else []
    problems = []
    if not verdict.alarm:
        problems.append("no alarm")
    if set(verdict.ranks) != case.ranks:
        problems.append(f"blames {verdict.ranks}, not {case.ranks}")
    if case.says not in verdict.sentence:
        problems.append(f"does not say {case.says!r}")
    if case.line and not re.search(rf"{case.path.name}:{case.line}\b", verdict.sentence):
        problems.append(f"does not name line {case.line}")
    return problems


def row(case: Case) -> tuple[str, str]:
    """The row of the table, and the page; "" instead of that for a case that was not examined."""
    name = case.path.stem
    if case.missing:
        return f"| {name} | not examined: {case.needs} is not installed | | |", ""
    job, verdict, text = examine(case)
    cells = name, judged(wrong(case, verdict)), f"{job.seconds:.0f} s", case.without_folder(verdict.sentence)
    return f"| {' | '.join(cells)} |", text


def judged(problems: list[str]) -> str:
    return f"WRONG: {'; '.join(problems)}" if problems else "right"


def table(title: str, columns: str, rows: Iterable[tuple[str, str]], show_pages: bool) -> str:
    """A section of MATRIX.md, whose rows are printed as they come. rows: (row, page)."""
    lines = []
    for line, text in rows:
        lines.append(line)
        print(f"{line}\n\n{text}\n" if show_pages else line, flush=True)
    right = sum("| right |" in line for line in lines)
    head = f"{columns}\n{re.sub('[^|]+', '---', columns)}\n"
    return f"{title}: {right} of {len(lines)} right\n\n{head}" + "\n".join(lines) + "\n\n"


def write_matrix(above: str, below: str) -> None:
    MATRIX.write_text(f"{above.rstrip()}\n\n{CHECK_HEADING}{below.rstrip()}\n")
    print(f"wrote {os.path.relpath(MATRIX)}")


def main(names: list[str]) -> int:
    """Examines the named cases, or all and writes their part of MATRIX.md; returns 1 if a verdict was wrong, else 0."""
    text = HEADER
    with ProcessPoolExecutor(WORKERS) as workers:
        for kind in ("sick", "healthy"):
            chosen = [case for name, case in cases(kind).items() if not names or name in names]
            rows = workers.map(row, chosen)
            text += table(f"## {kind.capitalize()}", "| script | verdict | after | in its words |", rows, bool(names))
    if not names:
        write_matrix(text, MATRIX.read_text().partition(CHECK_HEADING)[2])
    return int("| WRONG: " in text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
