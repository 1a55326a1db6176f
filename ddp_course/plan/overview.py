"""The map: for models of some sizes on clusters of some sizes, the axes of the simplest plan."""

from collections.abc import Iterable

from ddp_course.plan.derived import job_from
from ddp_course.plan.flags import plan_parser
from ddp_course.plan.memory import AXES
from ddp_course.plan.search import Plan, search

NOTHING = "does not fit"


def overview(sizes: Iterable[str], gpus: Iterable[int], memory: str = "80GB", link: str = "400Gb", *flags: str) -> dict:
    """(size, number of GPUs) -> such as "shard + tp", "one GPU", or that no mesh fits. flags: more of the command's."""
    counts, axes = list(gpus), {}
    for size in sizes:
        for count in counts:
            arguments = ["--params", size, "--gpus", str(count), "--memory", memory, "--link", link, *flags]
            plans = search(job_from(plan_parser().parse_args(arguments))[0])
            axes[size, count] = _axes(plans.simplest()) if plans.fits else NOTHING
    return axes


def _axes(plan: Plan) -> str:
    axes = zip(AXES, plan.layout.axes, strict=True)
    return " + ".join(axis for axis, ranks in axes if ranks > 1 and axis != "ep") or "one GPU"
