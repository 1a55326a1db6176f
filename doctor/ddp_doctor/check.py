"""`doctor check`: runs a script a few times, audited from inside its ranks, and lists what is silently wrong."""

import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from ddp_doctor import audited, words
from ddp_doctor.audited import AuditedRun
from ddp_doctor.checks import findings
from ddp_doctor.checks.finding import CATALOGUE, Finding
from ddp_doctor.checks.replicas import steps_by_optimizer
from ddp_doctor.checks.resume import loads
from ddp_doctor.diagnosis import diagnose
from ddp_doctor.history import position
from ddp_doctor.job import Job
from ddp_doctor.launch.cores import usable_cores
from ddp_doctor.page import page
from ddp_doctor.set_back import bring_back, checkpoint_step, put_aside, set_back, take_copies
from ddp_doctor.watch import run_and_watch

END_AFTER = 30.0  # seconds without any movement after which a run is ended


@dataclass
class Checked:
    """The findings of the audits, and if a run did not come to its end or the time limit, that job."""

    findings: list[Finding]
    failed: Job | None = None
    notes: tuple[str, ...] = ()

    @property
    def wrong(self) -> bool:
        return self.failed is not None or any(finding.status == "wrong" for finding in self.findings)


def check(script, arguments, nproc: int, seconds: float = 120.0, once: bool = False, resume_with=()) -> Checked:
    """Audits a run of `script` on `nproc` ranks, one on a single process, and a second one on `nproc` ranks.

    Each takes at most `seconds`. The single process starts with the files as they were before the first run; the second
    run with those of the first run's first checkpoint, and with the arguments `resume_with` added. With `once`, or if
    the first run fails or hangs, there are no other runs.
    What is wrong in the first run and ok in the second is reported as unknown.
    Raises InputError as run_and_watch does.
    """
    with tempfile.TemporaryDirectory(prefix="ddp_doctor_kept_") as copies:
        first, failed = _audited_run(script, arguments, nproc, seconds, Path(copies))
        if once or failed:
            shown = [finding for finding in findings(first) if not failed or finding.check != "resume"]
            return Checked(shown, failed, _notes(first))
        first.single = _on_one_process(script, arguments, seconds, first, Path(copies))
        first.not_set_back = set_back(first, Path(copies))
        if first.not_set_back is None:
            print(f"doctor: its files are as they were after step {checkpoint_step(first)}; it starts again on them")
    second, failed = _audited_run(script, [*arguments, *resume_with], nproc, seconds)
    first.second, second.single = second, first.single
    second_status = {finding.check: finding.status for finding in findings(second)}
    confirmed = [
        replace(finding, status="unknown", text=f"in one of two runs: {finding.text}")
        if (finding.status, second_status[finding.check], failed) == ("wrong", "ok", None)
        and not (finding.check == "replicas" and loads(first, second))  # equal, as all ranks loaded a checkpoint
        else finding
        for finding in findings(first)
    ]
    return Checked(confirmed, failed, _notes(first))


def _on_one_process(script, arguments, seconds: float, first: AuditedRun, copies: Path) -> AuditedRun | str:
    """An audited run on the files as they were before the first run; or in words, why there is none."""
    if first.world == 1 or not first.complete or not first.data_parallel or not steps_by_optimizer(first):
        return "no gradients are averaged, or the first run was cut off"
    moved = put_aside(first, copies / "first")
    if isinstance(moved, str):
        return f"{moved}, so the script was not started on one process"
    try:
        print("doctor: once more on one process, to compare the size of its steps")
        single, _ = _audited_run(script, arguments, 1, seconds)
        put_aside(single, copies / "single")
    finally:
        bring_back(moved)
    return single if single.complete else "on one process the script did not come to its end"


def _audited_run(
    script, arguments, nproc: int, seconds: float, copies: Path | None = None
) -> tuple[AuditedRun, Job | None]:
    """A run, and its job if it failed or hung. copies: where the files go that were copied at the first checkpoint."""
    audits = {}

    def read(folder):
        audits.update(audited.read(folder))
        if copies:
            take_copies(folder, copies)

    job = run_and_watch(script, arguments, nproc, timeout=seconds, end_after=END_AFTER, read_audits=read)
    failed = None if job.ended in ("well", "time") else job
    return AuditedRun(audits, job.ended == "well", usable_cores()[1]), failed


def _notes(run: AuditedRun) -> tuple[str, ...]:
    notes = (
        [] if run.complete else ["The run was cut off at its time limit: what comes later was not seen (--seconds)."]
    )
    failures = {event["text"] for audit in run.audits.values() for event in audit.of("audit failed")}
    return (*notes, *(f"The audit inside a rank gave up on one thing: {text}" for text in sorted(failures)))


def checklist(checked: Checked) -> str:
    """The page of a run that failed, the findings, the notes, and the findings' number by status; no final newline."""
    lines = []
    if checked.failed is not None:
        lines += ["The script did not come to its end, so this is only what was seen until then.", ""]
        lines += [page(checked.failed, diagnose(checked.failed)), ""]
    for finding in checked.findings:
        lines += _lines(finding)
    lines += ["", *checked.notes] if checked.notes else []
    number = Counter(finding.status for finding in checked.findings)
    total = f"{number['wrong']} wrong, {number['note']} to know, {number['ok']} ok, {number['unknown']} that "
    return "\n".join([*lines, "", f"{total}cannot be decided from outside."])


def _lines(finding: Finding) -> list[str]:
    lines = [finding.headline]
    if finding.status in ("wrong", "note"):
        if finding.frames:
            callers = [frame for frame in finding.frames[1:] if frame.function != finding.frames[0].function]
            called_from = f" (called from {words.location(callers[0])})" if callers else ""
            lines.append(f"         {words.code_at(finding.frames[0])}{called_from}")
        lines.append(f"         Known as: {CATALOGUE[finding.entry]}")
        lines.append(f"         What to do: {finding.cure}")
    return lines


def as_json(checked: Checked) -> dict:
    return {
        "wrong": checked.wrong,
        "findings": [
            {
                "check": finding.check,
                "status": finding.status,
                "text": finding.text,
                **position(finding.frames),
                "catalogue": finding.entry,
                "known_as": CATALOGUE.get(finding.entry),
                "what_to_do": finding.cure,
            }
            for finding in checked.findings
        ],
        "failed": checked.failed and diagnose(checked.failed).sentence,
    }
