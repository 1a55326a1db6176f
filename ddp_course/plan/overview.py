"""The map: for models of some sizes on clusters of some sizes, the axes of the simplest plan."""

from collections.abc import Iterable

from ddp_course.plan.__main__ import job_from, parser
from ddp_course.plan.search import search

NOTHING = "does not fit"


def overview(sizes: Iterable[str], gpus: Iterable[int], memory: str = "80GB", link: str = "400Gb", *flags: str) -> dict:
    """(size, number of GPUs) -> such as "shard + tp", "one GPU", or that no mesh fits. flags: more of the command's."""
    counts, found = list(gpus), {}
    for size in sizes:
        for count in counts:
            asked = ["--params", size, "--gpus", str(count), "--memory", memory, "--link", link, *flags]
            plans = search(job_from(parser().parse_args(asked))[0])
            found[size, count] = _axes(plans.simplest().layout) if plans.fits else NOTHING
    return found


def _axes(layout) -> str:
    return " + ".join(axis for axis in ("pp", "dp", "shard", "cp", "tp") if getattr(layout, axis) > 1) or "one GPU"
