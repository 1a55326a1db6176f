"""Checks how the job begins and ends, and how many threads it computes with."""

from ddp_doctor.audited import AuditedRun
from ddp_doctor.checks.finding import Finding, note, ok, require, wrong


def clean_exit(run: AuditedRun) -> Finding:
    begin = run.first("group begins")
    require(begin is not None, "the script made no process group")
    require(run.complete, "the script did not come to its end")
    left = [rank for rank, audit in run.audits.items() if audit.of("group begins") and not audit.of("group ends")]
    if not left:
        return ok("destroyed on every rank")
    require(begin["made_by"] == "own", "a library made the group, and may destroy it itself")
    text = f"rank{'s' * (len(left) > 1)} {', '.join(map(str, left))} never called destroy_process_group"
    cure = "End with dist.destroy_process_group(), after the model and the optimizer are gone."
    return wrong(text, begin["frames"], "F2", cure)


def timeout(run: AuditedRun) -> Finding:
    begin = run.first("group begins")
    require(begin is not None and begin["made_by"] == "own", "the script itself made no process group")
    if begin["timeout"]:
        return ok("passed to init_process_group")
    text = "a hang lasts for torch's default: 30 minutes (gloo), 10 (NCCL)"
    cure = "Pass timeout=timedelta(minutes=...) to init_process_group."
    return note(text, begin["frames"], "H2", cure)


def threads(run: AuditedRun) -> Finding:
    group_events = [event for events in run.of("group begins", "group ends").values() for event in events]
    settings = [event for events in run.of("threads").values() for event in events]  # torch.set_num_threads
    most = max([event["threads"] for event in group_events] + [event["number"] for event in settings], default=None)
    require(most is not None, "the script made no process group")
    text = f"{most} thread{'s' * (most > 1)} x {run.world} processes, {run.cores} cores"
    if most <= 1 or most * run.world <= run.cores:
        return ok(text)
    frames = group_events[0]["frames"] if group_events else ()
    frames = next((event["frames"] for event in settings if event["number"] == most), frames)
    cure = "Give each process cores / processes threads: OMP_NUM_THREADS, or torch.set_num_threads."
    return wrong(text, frames, "P3", cure)
