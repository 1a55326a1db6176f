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

import re
import sys
import tempfile
from pathlib import Path

from cases import CHECK_HEADING, FOLDER, MATRIX, Case, cases, judged, table, write_matrix
from ddp_doctor import audited, words
from ddp_doctor.audited import AuditedRun
from ddp_doctor.check import Checked, checklist
from ddp_doctor.checks import findings
from ddp_doctor.checks.finding import FAILED, Finding
from ddp_doctor.set_back import set_back, take_copies
from forked_ranks import run_ranks

CORES = 2  # of the machine that the scripts were written for
ALLOWED_NOTES = {"timeout", "metrics", "atomic"}  # checks of which a sound script may get a note


def audited_cases(*kinds: str) -> dict[str, Case]:
    """cases(*kinds), but for scripts that start their own ranks, which no audit follows."""
    return {name: case for name, case in cases(*kinds).items() if case.nproc == "2"}


def examine(case: Case) -> list[Finding]:
    return findings(audited_run(case))


def audited_run(case: Case) -> AuditedRun:
    """An audited run of a script on two ranks, with one on one rank, and one on two again if `runs` is 2."""
    with tempfile.TemporaryDirectory(prefix="audited_") as name:
        folder = Path(name)
        (folder / "out").mkdir()
        (folder / "alone").mkdir()
        first = _audited(case, folder / "first", folder / "out")
        single = _audited(case, folder / "single", folder / "alone", nproc=1)
        first.single = single if single.complete else "on one process the script did not come to its end"
        if case.runs == "2":
            take_copies(folder / "first", folder)
            first.not_set_back = set_back(first, folder)
            first.second = _audited(case, folder / "second", folder / "out")
        return first


def _audited(case: Case, audits: Path, out: Path, nproc: int = 2) -> AuditedRun:
    audits.mkdir()
    arguments = [audits, case.path, *([out] if case.runs == "2" else [])]
    ranks = run_ranks(FOLDER / "audited_script.py", *arguments, nproc=nproc, may_fail=nproc == 1)
    return AuditedRun(audited.read(audits), not any(ranks.exit_codes), CORES)


def wrong(case: Case, all_findings: list[Finding]) -> list[str]:
    """The faults of the findings, one sentence each; [] if they are right."""
    alarms = [
        each
        for each in all_findings
        if each.status == "wrong" or each.status == "note" and each.check not in ALLOWED_NOTES - {case.check}
    ]
    problems = [each.text for each in all_findings if each.text.startswith(FAILED)]
    if case.runs == "2" and not case.check and all_findings[-1].status != "ok":
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
    sentences = [
        f"{each.title}: {each.text}, at {words.location(each.frames[0]) if each.frames else 'no line'}"
        for each in all_findings
        if each.check == case.check
    ]
    text = case.without_folder((sentences or ["nothing is wrong"])[0])
    text = re.sub(rf"{re.escape(tempfile.gettempdir())}/\w+/", "", text)
    return f"| {name} | {judged(wrong(case, all_findings))} | {text} |", checklist(Checked(all_findings))


def main(names: list[str]) -> int:
    """Examines the named cases, or all and writes their part of MATRIX.md; returns 1 if one was judged wrongly."""
    text = "\n\nThe right check at the right line, and no other; nothing on a sound script.\n\n"
    for title, kinds in (("Silently wrong", ["silent"]), ("Sound", ["sound", "healthy"])):
        rows = (row(case) for name, case in audited_cases(*kinds).items() if not names or name in names)
        text += table(f"### {title}", "| script | judged | in its words |", rows, bool(names))
    if not names:
        write_matrix(MATRIX.read_text().partition(CHECK_HEADING)[0], text)
    return int("| WRONG: " in text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
