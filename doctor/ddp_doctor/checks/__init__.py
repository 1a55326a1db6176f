"""The checks of `doctor check` on the records of an audited run, in the order of its checklist."""

from ddp_doctor.audited import AuditedRun
from ddp_doctor.checks import files, gradients, job, replicas, samples, scale, validation
from ddp_doctor.checks.finding import TITLES, Finding

FAILED = "this check itself failed"
MODULES = {  # with the names of their checks: each is a function, and has its title in TITLES
    replicas: "replicas unused buffers state",
    gradients: "averaged accumulated once",
    scale: "scale tokens",
    samples: "samples split reshuffled dropout draws",
    validation: "validation metrics",
    files: "writers atomic loadable",
    job: "exit timeout threads",
}
ALL = {name: getattr(module, name) for module, names in MODULES.items() for name in names.split()}


def findings(run: AuditedRun) -> list[Finding]:
    """One finding for each check. One that follows from another finding becomes "unknown", and names that one."""
    by_name = {name: _finding(name, ALL[name], run) for name in TITLES if name in ALL}
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
