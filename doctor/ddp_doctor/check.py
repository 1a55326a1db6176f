"""`doctor check`: a script runs a few times, audited from inside its ranks; a checklist says what is wrong."""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from ddp_doctor import audited, words
from ddp_doctor.audited import AuditedRun
from ddp_doctor.checks import findings
from ddp_doctor.checks.finding import CATALOGUE, Finding
from ddp_doctor.checks.replicas import steps_by_optimizer
from ddp_doctor.checks.resume import loads, resume
from ddp_doctor.diagnosis import diagnose
from ddp_doctor.job import Job
from ddp_doctor.launch.cores import usable_cores
from ddp_doctor.page import page
from ddp_doctor.set_back import bring_back, moment, put_aside, set_back, take_copies
from ddp_doctor.watch import run_and_watch

HANGS = 30.0  # seconds without any movement after which a run is ended
MARKS = {"wrong": "WRONG", "note": "note ", "ok": "ok   ", "unknown": "?    "}


@dataclass
class Checked:
    """The findings of an audit, or the job that failed or hung instead."""

    findings: list[Finding]
    failed: Job | None = None
    notes: tuple[str, ...] = ()

    @property
    def wrong(self) -> bool:
        return self.failed is not None or any(finding.status == "wrong" for finding in self.findings)


def check(script, arguments, nproc: int, seconds: float = 120.0, once: bool = False, resume_with=()) -> Checked:
    """Two runs of `script` on `nproc` ranks, and one on a single process in between; with `once` the first alone.

    Each takes `seconds` at most. A finding of the first run that the second one does not have is undecided. The
    single process starts on the files as they stood at the beginning, the second run on those of the first's first
    checkpoint; it gets the arguments `resume_with`, too. Raises InputError as run_and_watch.
    """
    with tempfile.TemporaryDirectory(prefix="ddp_doctor_kept_") as copies:
        first, job = _audited_run(script, arguments, nproc, seconds, Path(copies))
        if once or job.ended not in ("well", "time"):
            failed = None if job.ended in ("well", "time") else job
            last = [resume(first, None)] if failed is None else []
            return Checked([*findings(first), *last], failed, _notes(first))
        first.single = _on_one_process(script, arguments, seconds, first, Path(copies))
        why_not = set_back(first, Path(copies))
        if why_not is None:
            print(f"doctor: its files are as they were after update {moment(first)}; it starts again on them")
    second, job = _audited_run(script, [*arguments, *resume_with], nproc, seconds)
    first.second, second.single = second, first.single
    again = {finding.check: finding.status for finding in findings(second)}
    failed = None if job.ended in ("well", "time") else job
    confirmed = [
        replace(finding, status="unknown", text=f"in one of two runs: {finding.text}")
        if (finding.status, again[finding.check], failed) == ("wrong", "ok", None)
        and not _mended(finding.check, first, second)
        else finding
        for finding in findings(first)
    ]
    return Checked([*confirmed, resume(first, second, why_not)], failed, _notes(first))


def _on_one_process(script, arguments, seconds: float, first: AuditedRun, copies: Path) -> AuditedRun | str:
    """The run, on the files as they stood before the first, or why there is none."""
    if first.world == 1 or not first.whole or not first.data_parallel or not steps_by_optimizer(first):
        return "no gradients are averaged, or the first run was cut off"
    moved = put_aside(first, copies / "first")
    if isinstance(moved, str):
        return f"{moved}, so the script was not started on one process"
    try:
        print("doctor: once more on one process, to compare the size of its updates")
        single, job = _audited_run(script, arguments, 1, seconds)
        single.whole = job.ended == "well"
        put_aside(single, copies / "single")
    finally:
        bring_back(moved)
    return single if single.whole else "on one process the script did not come to its end"


def _mended(check: str, first: AuditedRun, second: AuditedRun) -> bool:
    """Replicas that begin apart are made equal by a checkpoint that all of them load."""
    return check == "replicas" and bool(loads(first, second))


def _audited_run(script, arguments, nproc: int, seconds: float, copies: Path | None = None) -> tuple[AuditedRun, Job]:
    audits = {}

    def read(folder):
        audits.update(audited.read(folder))
        if copies:
            take_copies(folder, copies)

    job = run_and_watch(script, arguments, nproc, timeout=seconds, end_after=HANGS, read_audits=read)
    return AuditedRun(audits, job.ended == "well", usable_cores()[1]), job


def _notes(run: AuditedRun) -> tuple[str, ...]:
    notes = [] if run.whole else ["The run was cut off at its time limit: what comes later was not seen (--seconds)."]
    failures = {event["text"] for audit in run.audits.values() for event in audit.of("audit failed")}
    return (*notes, *(f"The audit inside a rank gave up on one thing: {text}" for text in sorted(failures)))


def checklist(checked: Checked) -> str:
    """The text, without a newline at its end: what is wrong first in the sum, then one line for each check."""
    lines = []
    if checked.failed is not None:
        lines += ["The script did not come to its end, so this is only what was seen until then.", ""]
        lines += [page(checked.failed, diagnose(checked.failed)), ""]
    for finding in checked.findings:
        lines += _lines(finding)
    lines += ["", *checked.notes] if checked.notes else []
    number = {status: len([finding for finding in checked.findings if finding.status == status]) for status in MARKS}
    total = f"{number['wrong']} wrong, {number['note']} to know, {number['ok']} ok, {number['unknown']} that "
    return "\n".join([*lines, "", f"{total}cannot be decided from outside."])


def _lines(finding: Finding) -> list[str]:
    lines = [f"{MARKS[finding.status]}  {finding.title}: {finding.text}"]
    if finding.status in ("wrong", "note"):
        if finding.frames:
            lines.append(f"         {words.code_at(finding.frames[0])}{_from(finding.frames)}")
        lines.append(f"         Known as: {CATALOGUE[finding.entry]}")
        lines.append(f"         What to do: {finding.cure}")
    return lines


def _from(frames) -> str:
    callers = [frame for frame in frames[1:] if frame.function != frames[0].function]
    return f" (called from {words.location(callers[0])})" if callers else ""


def as_json(checked: Checked) -> dict:
    """The same for a program."""
    return {
        "wrong": checked.wrong,
        "findings": [
            {
                "check": finding.check,
                "status": finding.status,
                "text": finding.text,
                "file": finding.frames[0].file if finding.frames else None,
                "line": finding.frames[0].line if finding.frames else None,
                "catalogue": finding.entry,
                "known_as": CATALOGUE.get(finding.entry),
                "what_to_do": finding.cure,
            }
            for finding in checked.findings
        ],
        "failed": checked.failed and diagnose(checked.failed).sentence,
    }
