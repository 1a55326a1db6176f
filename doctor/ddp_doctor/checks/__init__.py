"""The checks of `doctor check` on the records of an audited run, in the order of its checklist."""

from dataclasses import replace

from ddp_doctor.audited import AuditedRun
from ddp_doctor.checks import collectives, files, gradients, job, replicas, resume, samples, scale, validation
from ddp_doctor.checks.finding import Finding, result_of, unknown

CHECKS = {  # name -> its title, and the function
    "replicas": ("replicas equal after every step", replicas.replicas),
    "averaged": ("gradients averaged over the ranks", gradients.averaged),
    "accumulated": ("gradients of every backward pass used", gradients.accumulated),
    "scale": ("steps as large as on one process", scale.scale),
    "tokens": ("each value of the loss weighs the same", scale.tokens),
    "once": ("gradients sent once per step", gradients.once_per_step),
    "unused": ("every parameter used", replicas.unused),
    "buffers": ("buffers equal on all ranks", replicas.buffers),
    "state": ("what is evaluated or saved is equal on all ranks", replicas.state),
    "samples": ("each rank reads its own samples", samples.own_samples),
    "split": ("no rank trains on another's validation data", samples.split),
    "reshuffled": ("reshuffled in every epoch", samples.reshuffled),
    "dropout": ("dropout masks differ between ranks", samples.dropout),
    "draws": ("samples are augmented differently on each rank", samples.draws),
    "validation": ("validation reads each sample once", validation.validation),
    "metrics": ("metrics reduced over the ranks", validation.metrics),
    "views": ("collectives given contiguous tensors", collectives.views),
    "writers": ("one writer per file", files.one_writer),
    "atomic": ("checkpoints written atomically", files.atomic),
    "loadable": ("checkpoints load with weights_only=True", files.loadable),
    "exit": ("process group destroyed at the end", job.clean_exit),
    "timeout": ("a timeout chosen", job.timeout),
    "threads": ("threads x processes within the cores", job.threads),
    "resume": ("a second start goes on where the first ended", resume.resume),
}
EFFECTS = {  # check -> the checks whose findings follow from it
    "unused": ("averaged", "replicas"),
    "averaged": ("replicas", "scale", "once"),
    "replicas": ("scale",),
    "accumulated": ("scale", "averaged", "tokens"),
    "tokens": ("scale",),
    "split": ("samples",),
}


def findings(run: AuditedRun) -> list[Finding]:
    """One finding for each check. One that follows from another finding becomes "unknown", and names that one."""
    by_name = {name: result_of(check, run) for name, (_, check) in CHECKS.items()}
    for cause, effects in EFFECTS.items():
        for effect in effects:
            if by_name[cause].status == "wrong" and by_name[effect].status in ("wrong", "note"):
                by_name[effect] = unknown(f"follows from: {CHECKS[cause][0]}")
    return [replace(finding, check=name, title=CHECKS[name][0]) for name, finding in by_name.items()]
