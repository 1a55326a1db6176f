"""Do collectives get tensors whose numbers lie in memory as gloo reads them?"""

import math

from ddp_doctor.audited import AuditedRun
from ddp_doctor.checks.finding import Finding, ok, require, wrong


def views(run: AuditedRun) -> Finding:
    """Gloo takes as many numbers as a view has from those that lie next in memory (pytorch#192920)."""
    require(run.has_group, "the ranks have no process group")
    for row in run.rows("collective"):
        if _misreads(row[0]["name"], [event["views"] for event in row]):
            rank, event = next((rank, event) for rank, event in zip(run.audits, row, strict=True) if event["views"])
            shape, strides = event["views"][0]
            text = f"rank {rank} gives {event['name']} a view of shape {shape} with strides {strides}; gloo takes the "
            text += f"{math.prod(shape):,} numbers that lie next in memory"
            cure = "Pass x.contiguous(), and copy the result back where x has to change."
            return wrong(text, event["frames"], "S25", cure)
    return ok("contiguous, or laid out alike on all ranks")


def _misreads(name, views_of_ranks):
    """Whether gloo misreads the views, each (shape, strides), in torch 2.11 to 2.15. It copies or refuses others."""
    gaps = [_has_gaps(*view) for views in views_of_ranks for view in views]
    if name in ("all_reduce", "broadcast", "reduce"):  # element by element, which is right for equal strides
        return any(gaps) or any(views != views_of_ranks[0] for views in views_of_ranks)
    return bool(gaps) and (name == "scatter" or name == "reduce_scatter" and not all(gaps))


def _has_gaps(shape, strides):
    """Whether the view leaves out numbers between its own, or repeats some."""
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) != math.prod(shape)
