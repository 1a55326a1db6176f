"""Calibrate a job by one measured step: find the share of the peak FLOP/s that its kernels reach.

    --measured "shard 8: 2.9 s"
    --measured "tp 2 dp 4, 2 windows, checkpointing: 41000 tokens/s"      # or a file with such a line

The step is of the same model and tokens per update, on any mesh of such GPUs and links. For settings that the line
leaves out, those with the quickest step by the formulas are taken.
"""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ddp_course.base.errors import InputError
from ddp_course.plan.job import KERNELS_LIMITS, Job
from ddp_course.plan.memory import AXES, Layout
from ddp_course.plan.search import refusal_reason, ways
from ddp_course.plan.traffic import step

ONE_GPU = "one GPU"  # the mesh without axes, in --measured and in the report
SETTINGS: dict[str, Callable[[re.Match], dict[str, object]]] = {  # pattern -> fields of a Layout
    r"ZeRO-([123])": lambda match: {"zero": int(match[1])},
    r"(\d+) windows?": lambda match: {"micro_batch": int(match[1])},
    r"(\d+) chunks?": lambda match: {"chunks": int(match[1])},
    r"(no )?checkpointing": lambda match: {"recompute": not match[1]},
}
EXAMPLE = 'such as "shard 8: 2.9 s" or "tp 2 dp 4, 2 windows: 41000 tokens/s"'


def calibrate(job: Job, text: str) -> Job:
    """The job with the speed of the kernels by which its formulas give the measured seconds.

    text: a line as above, or the name of a file with one. Raises InputError if no such speed exists.
    """
    if os.path.isfile(text):  # Path.is_file raises for a text that no file name can be
        text = Path(text).read_text(errors="replace").strip()
    axes, settings, seconds = read_measured(text, job.tokens)
    measured_job = replace(job, cluster=replace(job.cluster, gpus=Layout(**axes).gpus))
    layout = measured_layout(measured_job, axes, settings)
    kernels = kernels_for(measured_job, layout, seconds, text)
    sentence = (
        f"calibrated by one measured step, {text!r}: by the formulas its kernels reach {kernels:.1%} of the peak,\n"
        f"not {job.cluster.kernels:.0%} as assumed; that other meshes reach as much is an assumption"
    )
    return replace(job, cluster=replace(job.cluster, kernels=kernels), measured=sentence)


def read_measured(text: str, tokens: int) -> tuple[dict[str, int], dict[str, object], float]:
    """The sizes of the axes, the settings (fields of a Layout) and the seconds. tokens: per optimizer step."""
    match = re.fullmatch(r"([^:]+):\s*(\d+(?:\.\d*)?(?:e\d+)?)\s*(s|ms|tokens/s)", text.strip())
    if not match or not float(match[2]):
        raise InputError(f"--measured is a mesh and its step, {EXAMPLE}, or a file with that, got {text!r}")
    mesh, *parts = (part.strip() for part in match[1].split(","))
    number, unit = float(match[2]), match[3]
    seconds = tokens / number if unit == "tokens/s" else number / (1000 if unit == "ms" else 1)
    words = [] if mesh == ONE_GPU else mesh.split()
    axes = dict(zip(words[::2], words[1::2], strict=False))
    if 2 * len(axes) != len(words) or not all(
        axis in AXES and re.fullmatch("[1-9][0-9]{0,5}", axes[axis]) for axis in axes
    ):
        raise InputError(f"--measured names a mesh by its axes, {EXAMPLE}, got {mesh!r}; axes are {', '.join(AXES)}")
    settings = {}
    for part in parts:
        matches = [read(match) for pattern, read in SETTINGS.items() if (match := re.fullmatch(pattern, part))]
        if not matches:
            raise InputError(f"--measured knows ZeRO-1 to 3, windows, chunks and checkpointing, got {part!r}")
        settings |= matches[0]
    return {axis: int(size) for axis, size in axes.items()}, settings, seconds


def measured_layout(job: Job, axes: dict[str, int], settings: dict[str, object]) -> Layout:
    """The quickest layout with these axes and settings. Raises InputError if all are refused."""
    layouts = [way for way in ways(Layout(**axes)) if all(getattr(way, name) == settings[name] for name in settings)]
    layouts = layouts or [replace(Layout(**axes), **settings)]
    possible = [layout for layout in layouts if not refusal_reason(job, layout)]
    if not possible:
        raise InputError(f"--measured: this mesh cannot have run: {refusal_reason(job, layouts[0])}")
    return min(possible, key=lambda layout: step(job, layout).total)


def kernels_for(job: Job, layout: Layout, seconds: float, text: str) -> float:
    """The share of the peak FLOP/s at which the step of the layout takes these seconds, by bisection.

    A larger share never makes the step longer. Raises InputError if no share within KERNELS_LIMITS gives these seconds.
    """

    def step_seconds(kernels: float) -> float:
        return step(replace(job, cluster=replace(job.cluster, kernels=kernels)), layout).total

    low, high = KERNELS_LIMITS
    if not step_seconds(high) <= seconds <= step_seconds(low):
        raise InputError(
            f"--measured {text!r}: by the formulas it takes {step_seconds(high):.3g} s with kernels at the whole peak, "
            f"{step_seconds(low):.3g} s at {low:.1%} of it; is --gpu, --link or --tokens-per-update another one?"
        )
    while high / low > 1 + 1e-12:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if step_seconds(middle) > seconds else (low, middle)
    return high
