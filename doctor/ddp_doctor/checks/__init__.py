"""What `doctor check` looks for in an audited run, in the order of its checklist. No process is touched here."""

from ddp_doctor.audited import AuditedRun
from ddp_doctor.checks import files, gradients, job, replicas, samples, validation
from ddp_doctor.checks.finding import Finding

FAILED = "this check itself failed"
ALL = {
    "replicas": replicas.replicas,
    "averaged": gradients.averaged,
    "once": gradients.once_per_update,
    "unused": replicas.unused,
    "buffers": replicas.buffers,
    "samples": samples.apart,
    "reshuffled": samples.reshuffled,
    "dropout": samples.dropout,
    "validation": validation.validation,
    "metrics": validation.metrics,
    "writers": files.one_writer,
    "atomic": files.atomic,
    "loadable": files.loadable,
    "exit": job.clean_exit,
    "timeout": job.timeout,
    "threads": job.threads,
}


def findings(run: AuditedRun) -> list[Finding]:
    """One for each check. What only follows from another finding is said there, and not counted a second time."""
    found = {name: _finding(name, check, run) for name, check in ALL.items()}
    for cause, effects in (("unused", ("averaged", "replicas")), ("averaged", ("replicas",))):
        for effect in effects:
            if found[cause].status == "wrong" and found[effect].status == "wrong":
                found[effect] = Finding(effect, "unknown", f"follows from: {found[cause].title}")
    return list(found.values())


def _finding(name: str, check, run: AuditedRun) -> Finding:
    """A script may do what no check foresees; the others still count."""
    try:
        return check(run)
    except Exception as error:
        return Finding(name, "unknown", f"{FAILED}: {error!r}")
