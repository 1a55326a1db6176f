"""One measured step calibrates a plan: it says which share of the peak the kernels reach, so none is assumed.

    --measured "shard 8: 2.9 s"
    --measured "tp 2 dp 4, 2 windows, checkpointing: 41000 tokens/s"      # or a file with such a line

A step of the same model and the same tokens per update, on any mesh of the same GPUs and links. Settings of that run
that the line does not name are those that the plan would choose.
"""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ddp_course.base.errors import InputError
from ddp_course.plan.job import KERNELS_LIMITS, Job
from ddp_course.plan.memory import AXES, Layout
from ddp_course.plan.search import cannot, ways
from ddp_course.plan.traffic import step

ONE_GPU = "one GPU"
HOW: dict[str, Callable[[re.Match], dict[str, object]]] = {
    r"ZeRO-([123])": lambda match: {"zero": int(match[1])},
    r"(\d+) windows?": lambda match: {"micro_batch": int(match[1])},
    r"(\d+) chunks?": lambda match: {"chunks": int(match[1])},
    r"(no )?checkpointing": lambda match: {"recompute": not match[1]},
}
EXAMPLE = 'such as "shard 8: 2.9 s" or "tp 2 dp 4, 2 windows: 41000 tokens/s"'


def calibrated(job: Job, text: str) -> Job:
    """The job with kernels as fast as the measured step says. text: as above, or the name of a file that holds it."""
    if os.path.isfile(text):  # False for what cannot be the name of a file
        text = Path(text).read_text(errors="replace").strip()
    axes, how, seconds = read_measured(text, job.tokens)
    layout = measured_layout(job, axes, how)
    here = replace(job, cluster=replace(job.cluster, gpus=layout.gpus))
    kernels = kernels_for(here, layout, seconds, text)
    sentence = (
        f"calibrated by one measured step, {text!r}: by the formulas its kernels reach {kernels:.1%} of the peak,\n"
        f"not {job.cluster.kernels:.0%} as assumed; that other meshes reach as much is an assumption"
    )
    return replace(job, cluster=replace(job.cluster, kernels=kernels), measured=sentence)


def read_measured(text: str, tokens: int) -> tuple[dict[str, int], dict[str, object], float]:
    """The axes, what is said of how it ran, and the seconds. tokens: of an update."""
    match = re.fullmatch(r"([^:]+):\s*(\d+(?:\.\d*)?(?:e\d+)?)\s*(s|ms|tokens/s)", text.strip())
    if not match or not float(match[2]):
        raise InputError(f"--measured is a mesh and its step, {EXAMPLE}, or a file with that, got {text!r}")
    mesh, *said = (part.strip() for part in match[1].split(","))
    number, unit = float(match[2]), match[3]
    seconds = tokens / number if unit == "tokens/s" else number / (1000 if unit == "ms" else 1)
    words = [] if mesh == ONE_GPU else mesh.split()
    axes = dict(zip(words[::2], words[1::2], strict=False))
    if 2 * len(axes) != len(words) or not all(
        axis in AXES and re.fullmatch("[1-9][0-9]{0,5}", axes[axis]) for axis in axes
    ):
        raise InputError(f"--measured names a mesh by its axes, {EXAMPLE}, got {mesh!r}; axes are {', '.join(AXES)}")
    how = {}
    for part in said:
        matches = [(read, match) for pattern, read in HOW.items() if (match := re.fullmatch(pattern, part))]
        if not matches:
            raise InputError(f"--measured knows ZeRO-1 to 3, windows, chunks and checkpointing, got {part!r}")
        how |= matches[0][0](matches[0][1])
    return {axis: int(size) for axis, size in axes.items()}, how, seconds


def measured_layout(job: Job, axes: dict[str, int], how: dict[str, object]) -> Layout:
    """The quickest way to run these axes that agrees with what is said."""
    layouts = [way for way in ways(Layout(**axes)) if all(getattr(way, name) == value for name, value in how.items())]
    layouts = layouts or [replace(Layout(**axes), **how)]
    here = replace(job, cluster=replace(job.cluster, gpus=layouts[0].gpus))
    possible = [layout for layout in layouts if not cannot(here, layout)]
    if not possible:
        raise InputError(f"--measured: this mesh cannot have run: {cannot(here, layouts[0])}")
    return min(possible, key=lambda layout: step(here, layout).total)


def kernels_for(job: Job, layout: Layout, seconds: float, text: str) -> float:
    """The share of the peak with which the formulas give so many seconds, by bisection: more of it is never slower."""

    def formula(kernels: float) -> float:
        return step(replace(job, cluster=replace(job.cluster, kernels=kernels)), layout).total

    low, high = KERNELS_LIMITS
    if not formula(high) <= seconds <= formula(low):
        raise InputError(
            f"--measured {text!r}: by the formulas it takes {formula(high):.3g} s with kernels at the whole peak, "
            f"{formula(low):.3g} s at {low:.1%} of it; is --gpu, --link or --tokens-per-update another one?"
        )
    while high / low > 1 + 1e-12:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if formula(middle) > seconds else (low, middle)
    return high
