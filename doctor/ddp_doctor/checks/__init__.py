"""The checks of `doctor check` on the records of an audited run, in the order of its checklist."""

from ddp_doctor.audited import AuditedRun
from ddp_doctor.checks import files, gradients, job, replicas, samples, scale, validation
from ddp_doctor.checks.finding import Finding

FAILED = "this check itself failed"
ALL = {
    "replicas": replicas.replicas,
    "averaged": gradients.averaged,
    "accumulated": gradients.accumulated,
    "scale": scale.scale,
    "tokens": scale.tokens,
    "once": gradients.once_per_update,
    "unused": replicas.unused,
    "buffers": replicas.buffers,
    "state": replicas.state,
    "samples": samples.own_samples,
    "split": samples.split,
    "reshuffled": samples.reshuffled,
    "dropout": samples.dropout,
    "draws": samples.draws,
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
    """One finding for each check. One that follows from another finding becomes "unknown", and names that one."""
    by_name = {name: _finding(name, check, run) for name, check in ALL.items()}
    causes = {
        "unused": ("averaged", "replicas"),
        "averaged": ("replicas", "scale", "once"),
        "replicas": ("scale",),
        "accumulated": ("scale", "averaged", "tokens"),
        "tokens": ("scale",),
        "split": ("samples",),
    }
    for cause, effects in causes.items():
        for effect in effects:
            if by_name[cause].status == "wrong" and by_name[effect].status in ("wrong", "note"):
                by_name[effect] = Finding(effect, "unknown", f"follows from: {by_name[cause].title}")
    return list(by_name.values())


def _finding(name: str, check, run: AuditedRun) -> Finding:
    """The check's finding, "unknown" if the check raises: the records of a script may be unlike any foreseen."""
    try:
        return check(run)
    except Exception as error:
        return Finding(name, "unknown", f"{FAILED}: {error!r}")
