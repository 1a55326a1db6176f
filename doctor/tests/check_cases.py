"""Runs the example scripts under the audit of `doctor check`, and compares its findings with the scripts' headers.

A script in silent/ ends well, with a plausible loss, and has one defect. Its header names the check that finds it,
`# HERE` marks the line. Scripts in sound/ and healthy/ have no defect.

    # check: averaged
    # status: note            (the finding's status, if it is not "wrong")
    # says: words of the finding
    # runs: 2                (once more with the files of its first checkpoint; it gets an empty folder as its argument)

    python doctor/tests/check_cases.py                  # checks all, and writes their part of doctor/tests/MATRIX.md
    python doctor/tests/check_cases.py two_writers      # checks these, and prints their checklists
"""

import importlib.util
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cases import CHECK_HEADING, FOLDER, MATRIX, header_and_line
from ddp_doctor import audited, words
from ddp_doctor.audited import AuditedRun
from ddp_doctor.check import Checked, checklist
from ddp_doctor.checks import findings
from ddp_doctor.checks.finding import FAILED, Finding
from ddp_doctor.set_back import set_back, take_copies
from forked_ranks import run_ranks

CORES = 2  # of the machine that the scripts were written for
ALLOWED_NOTES = {"timeout", "metrics", "atomic"}  # checks of which a sound script may get a note


@dataclass(frozen=True)
class Case:
    """One example script. needs: a package without which it is not run. The other facts: see the module."""

    path: Path
    check: str = ""
    status: str = "wrong"
    line: int | None = None
    needs: str = ""
    says: str = ""
    runs: int = 1

    @property
    def missing(self) -> bool:
        """Is the package that the script needs not installed?"""
        return bool(self.needs) and importlib.util.find_spec(self.needs) is None


def cases(*kinds: str) -> dict[str, Case]:
    """{name: case} of the folders. kinds: "silent", "sound" or "healthy"."""
    by_name = {}
    for path in sorted(path for kind in kinds for path in (FOLDER / kind).glob("*.py")):
        header, line = header_and_line(path)
        if "nproc" in header:  # it starts its own ranks, which no audit follows
            continue
        by_name[path.stem] = Case(
            path,
            header.get("check", ""),
            header.get("status", "wrong"),
            line,
            header.get("needs", ""),
            header.get("says", ""),
            int(header.get("runs", 1)),
        )
    return by_name


def examine(case: Case) -> list[Finding]:
    """The findings of the checks on audited runs of a script: on two ranks, on one, and on two again if `runs` is 2."""
    with tempfile.TemporaryDirectory(prefix="audited_") as name:
        folder = Path(name)
        (folder / "out").mkdir()
        (folder / "alone").mkdir()
        first = _audited(case, folder / "first", folder / "out")
        single = _audited(case, folder / "single", folder / "alone", nproc=1)
        first.single = single if single.whole else "on one process the script did not come to its end"
        if case.runs == 2:
            take_copies(folder / "first", folder)
            first.not_set_back = set_back(first, folder)
            first.second = _audited(case, folder / "second", folder / "out")
        return findings(first)


def _audited(case: Case, audits: Path, out: Path, nproc: int = 2) -> AuditedRun:
    audits.mkdir()
    arguments = [audits, case.path, *[out] * (case.runs - 1)]
    ranks = run_ranks(FOLDER / "audited_script.py", *arguments, nproc=nproc, may_fail=nproc == 1)
    return AuditedRun(audited.read(audits), not any(ranks.exit_codes), CORES)


def wrong(case: Case, all_findings: list[Finding]) -> list[str]:
    """What is wrong with the findings, one sentence each; [] if they are right."""
    alarms = [
        each
        for each in all_findings
        if each.status == "wrong" or each.status == "note" and each.check not in ALLOWED_NOTES - {case.check}
    ]
    problems = [each.text for each in all_findings if each.text.startswith(FAILED)]
    if case.runs == 2 and not case.check and all_findings[-1].status != "ok":
        problems.append(f"resume is not decided: {all_findings[-1].text}")
    problems += [f"an alarm: {each.title}: {each.text}" for each in alarms if each.check != case.check]
    of_check = [each for each in alarms if each.check == case.check]
    if case.check and not of_check:
        problems.append(f"nothing found by {case.check}")
    for each in of_check:
        if case.says not in each.text:
            problems.append(f"does not say {case.says!r}, but {each.text}")
        if each.status != case.status:
            problems.append(f"is {each.status}, not {case.status}")
        if not each.frames or (each.frames[0].file, each.frames[0].line) != (str(case.path), case.line):
            problems.append(f"names {each.frames[:1]}, not line {case.line}")
    return problems


def row(case: Case) -> tuple[str, str]:
    """The row of the table, and the checklist; "" instead of that for a case that was not examined."""
    name = case.path.stem
    if case.missing:
        return f"| {name} | not examined: {case.needs} is not installed | |", ""
    all_findings = examine(case)
    problems = wrong(case, all_findings)
    judged = "right" if not problems else f"WRONG: {'; '.join(problems)}"
    sentences = [
        f"{each.title}: {each.text}, at {words.location(each.frames[0]) if each.frames else 'no line'}"
        for each in all_findings
        if each.check == case.check
    ]
    text = (
        (sentences or ["nothing is wrong"])[0].replace(f"{os.path.relpath(case.path.parent)}/", "").replace("|", "\\|")
    )
    text = re.sub(rf"{re.escape(tempfile.gettempdir())}/\w+/", "", text)
    return f"| {name} | {judged} | {text} |", checklist(Checked(all_findings))


def main(names: list[str]) -> int:
    """Examines the named cases, or all and writes their part of MATRIX.md; returns how many were judged wrongly."""
    text = f"{CHECK_HEADING}\n\nThe right check at the right line, and no other; nothing on a sound script.\n\n"
    failures = 0
    for title, kinds in (("Silently wrong", ("silent",)), ("Sound", ("sound", "healthy"))):
        rows = []
        for name, case in cases(*kinds).items():
            if not names or name in names:
                line, shown = row(case)
                rows.append(line)
                failures += "WRONG: " in line
                print(f"{line}\n\n{shown}\n" if names else line, flush=True)
        text += f"### {title}: {sum('| right |' in line for line in rows)} of {len(rows)} right\n\n"
        text += "| script | judged | in its words |\n|---|---|---|\n" + "\n".join(rows) + "\n\n"
    if not names:
        other_part = MATRIX.read_text().partition(CHECK_HEADING)[0].rstrip()
        MATRIX.write_text(f"{other_part}\n\n{text.rstrip()}\n")
        print(f"wrote {os.path.relpath(MATRIX)}")
    return failures


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
