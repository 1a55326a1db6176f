"""`doctor check`: a script runs twice, audited from inside its ranks; a checklist says what is wrong, and what not."""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from ddp_doctor import audited, words
from ddp_doctor.audited import AuditedRun
from ddp_doctor.checks import findings
from ddp_doctor.checks.finding import CATALOGUE, Finding
from ddp_doctor.checks.resume import loads, resume
from ddp_doctor.diagnosis import diagnose
from ddp_doctor.launch.cores import usable_cores
from ddp_doctor.page import page
from ddp_doctor.seen import Job
from ddp_doctor.set_back import moment, set_back, take_copies
from ddp_doctor.watch import run_and_watch

HANGS = 30.0  # seconds without any movement after which a run is ended
MARKS = {"wrong": "WRONG", "note": "note ", "ok": "ok   ", "unknown": "?    "}


@dataclass
class Checked:
    """What was found, and the job that failed or hung instead, if one did."""

    findings: list[Finding]
    failed: Job | None = None
    notes: tuple[str, ...] = ()

    @property
    def wrong(self) -> bool:
        return self.failed is not None or any(one.status == "wrong" for one in self.findings)


def check(script, arguments, nproc: int, seconds: float = 120.0, once: bool = False, resume_with=()) -> Checked:
    """Two runs of `script` on `nproc` ranks, each of `seconds` at most; with `once` a single one.

    What is found wrong in the first run and right in the second cannot be decided. The second starts on the files as
    they stood at the first checkpoint of the first, and gets the arguments `resume_with`, too. Raises InputError as
    run_and_watch.
    """
    with tempfile.TemporaryDirectory(prefix="ddp_doctor_kept_") as copies:
        first, job = _audited_run(script, arguments, nproc, seconds, Path(copies))
        if job.ended not in ("well", "time"):
            return Checked(findings(first), job)
        found = findings(first)
        if once:
            return Checked([*found, resume(first, None)], notes=_notes(first))
        why_not = set_back(first, Path(copies))
        if why_not is None:
            print(f"doctor: its files are as they were after update {moment(first)}; it starts again on them")
    second, job = _audited_run(script, [*arguments, *resume_with], nproc, seconds)
    if job.ended not in ("well", "time"):
        return Checked([*found, resume(first, second, why_not)], job)
    again = {one.check: one for one in findings(second)}
    found = [
        replace(one, status="unknown", text=f"in one of two runs: {one.text}")
        if one.status == "wrong" and again[one.check].status == "ok" and not _mended(one.check, first, second)
        else one
        for one in found
    ]
    return Checked([*found, resume(first, second, why_not)], notes=_notes(first))


def _mended(check: str, first: AuditedRun, second: AuditedRun) -> bool:
    """Replicas that begin apart are made equal by a checkpoint that all of them load."""
    return check == "replicas" and bool(loads(first, second))


def _audited_run(script, arguments, nproc: int, seconds: float, copies: Path | None = None) -> tuple[AuditedRun, Job]:
    audits = {}

    def read(folder):
        audits.update(audited.read(folder))
        if copies:
            take_copies(folder, copies)

    job = run_and_watch(script, arguments, nproc, timeout=seconds, read_audits=read)
    return AuditedRun(audits, job.ended == "well", usable_cores()[1]), job


def _notes(run: AuditedRun) -> tuple[str, ...]:
    notes = [] if run.whole else ["The run was cut off at its time limit: what comes later was not seen (--seconds)."]
    failures = {one["text"] for audit in run.audits.values() for one in audit.of("audit failed")}
    return (*notes, *(f"The audit inside a rank gave up on one thing: {text}" for text in sorted(failures)))


def checklist(checked: Checked) -> str:
    """The text, without a newline at its end: what is wrong first in the sum, then one line for each check."""
    lines = []
    if checked.failed is not None:
        lines += ["The script did not come to its end, so this is only what was seen until then.", ""]
        lines += [page(checked.failed, diagnose(checked.failed)), ""]
    for one in checked.findings:
        lines += _lines(one)
    lines += ["", *checked.notes] if checked.notes else []
    number = {status: len([one for one in checked.findings if one.status == status]) for status in MARKS}
    lines += [
        "",
        f"{number['wrong']} wrong, {number['note']} to know, {number['ok']} ok, {number['unknown']} that "
        "cannot be decided from outside.",
    ]
    return "\n".join(lines)


def _lines(one: Finding) -> list[str]:
    found = [f"{MARKS[one.status]}  {one.title}: {one.text}"]
    if one.status in ("wrong", "note"):
        if one.frames:
            found.append(f"         {words.code_at(one.frames[0])}{_from(one.frames)}")
        found.append(f"         {one.entry}: {CATALOGUE[one.entry]}")
        found.append(f"         What to do: {one.cure}")
    return found


def _from(frames) -> str:
    callers = [frame for frame in frames[1:] if frame.function != frames[0].function]
    return f" (called from {words.place(callers[0])})" if callers else ""


def as_json(checked: Checked) -> dict:
    """The same for a program."""
    return {
        "wrong": checked.wrong,
        "findings": [
            {
                "check": one.check,
                "status": one.status,
                "text": one.text,
                "file": one.frames[0].file if one.frames else None,
                "line": one.frames[0].line if one.frames else None,
                "catalogue": one.entry,
                "what_to_do": one.cure,
            }
            for one in checked.findings
        ],
        "failed": checked.failed and diagnose(checked.failed).sentence,
    }
