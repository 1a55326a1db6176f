"""A plan as text: a table of meshes, the notebook of each number, and why other meshes are refused."""

import itertools
from collections.abc import Iterable
from dataclasses import replace

from ddp_course.base.quantity import format_number, with_prefix
from ddp_course.plan.assumptions import ASSUMED, COUNTED_SHARE, KERNELS_SPREAD
from ddp_course.plan.calibration import ONE_GPU
from ddp_course.plan.derived import job_from
from ddp_course.plan.flags import plan_parser
from ddp_course.plan.job import USABLE, Job
from ddp_course.plan.memory import AXES, Layout
from ddp_course.plan.search import SAME, Plan, SearchResult, best_way, search, simple_layouts, step_interval

SHOWN, NOTHING = 5, "does not fit"
MEMORY_NOTEBOOKS = {
    "weights": "17",
    "gradients": "17",
    "optimizer": "17",
    "gathered": "17.3",
    "activations": "7b, 22, 23, 24",
}
AXIS_NOTEBOOKS = {"tp": "22", "cp": "24", "shard": "17", "dp": "04", "pp": "23", "ep": "24"}
UNKNOWN = """Memory: as counted, to 1/{counted:g} of it, as much more as a trainer was measured to hold.
Step: tp, cp and ep are waited for, the rest as far as it outlasts the computation; in brackets 90 % of draws with
kernels at {kernels:.3g} of the peak ({source}) +- {spread:.0%}, none to all messages waited for, and a share of
the links of {links.low:.0%} to {links.high:.0%}.
What this does not know: the data loader, checkpoints, your MLP without --mlp and --gated, and without --trainer
whether yours can do this. Measure the first two or three meshes; steps within {same:.0%} are equal here."""


def name(plan: Plan) -> str:
    """The mesh of a plan, such as "shard 8 tp 2": its axes with more than one rank."""
    return " ".join(f"{axis} {ranks}" for axis, ranks in _axes(plan).items()) or ONE_GPU


def _axes(plan: Plan) -> dict[str, int]:
    """axis -> ranks, for the axes with more than one rank."""
    return {axis: ranks for axis, ranks in zip(AXES, plan.layout.axes, strict=True) if ranks > 1}


def way(plan: Plan) -> str:
    """How a step runs on the mesh, such as "ZeRO-3, 4 x 2 windows, checkpointing"."""
    layout, words = plan.layout, []
    if layout.shards > 1:
        words.append(f"ZeRO-{layout.zero}")
    words.append(f"{plan.micro_batches} x {layout.micro_batch} windows")
    words += ["checkpointing"] * layout.recompute + [f"{layout.chunks} chunks"] * (layout.chunks > 1)
    return ", ".join(words)


def report(job: Job, derived: list[str], result: SearchResult) -> str:
    """The text that `plan` prints. derived: the flags that were derived or assumed."""
    model, gpus = job.model, job.cluster.gpus
    lines = [
        f"{model.parameters / 1e9:.4g} billion parameters, {model.layers} layers, {model.width:,} wide, "
        f"{model.heads} heads, windows of {model.context:,} tokens, {job.tokens:,} tokens per update; "
        f"{gpus:,} GPU{'s' * (gpus > 1)}, {USABLE:.0%} of the memory usable: {with_prefix(job.limit, 'B')}"
    ]
    if derived:
        lines.append(f"derived or assumed, give them if yours differ: {' '.join(derived)}")
    if job.measured:
        lines.append(job.measured)
    if result.fits:
        distinct = result.distinct()
        lines += [
            "",
            f"{len(result.fits)} of {result.tried} meshes fit. The quickest of {len(distinct)} pairs of pp and tp:",
            "",
            *_table(distinct[:SHOWN], job),
        ]
        simplest = result.simplest()
        lines += ["", f"Simplest within {SAME - 1:.0%} of the quickest: {name(simplest)} ({way(simplest)})"]
        lines += _details(simplest)
        if job.trainer:
            lines += ["", f"{job.trainer.title}, {name(simplest)}:", *job.trainer.command(job, simplest.layout)]
    else:
        lines += ["", *_why_none_fits(job, result)]
    lines += ["", "Meshes refused, by reason (notebook):"]
    lines += [f"  {times:>5}  {reason}" for reason, times in result.refused.most_common()] or ["  none"]
    if gpus > 1:
        lines += ["", "The simple ones:"]
        for title, layout in simple_layouts(job).items():
            lines.append(f"  {title:34} {_against_quickest(job, layout, result)}")
    return "\n".join([*lines, "", _unknown(job)])


def _unknown(job: Job) -> str:
    return UNKNOWN.format(
        counted=COUNTED_SHARE,
        kernels=job.cluster.kernels,
        source="--measured" if job.measured else "--kernels",
        spread=KERNELS_SPREAD,
        links=ASSUMED["link_share"],
        same=SAME - 1,
    )


def overview(sizes: Iterable[str], gpus: Iterable[int], memory: str = "80GB", link: str = "400Gb") -> dict:
    """(size, number of GPUs) -> the axes of the simplest plan, such as "shard + tp"; ONE_GPU; or NOTHING."""
    axes = {}
    for size, count in itertools.product(sizes, gpus):
        flags = ["--params", size, "--gpus", str(count), "--memory", memory, "--link", link]
        plans = search(job_from(plan_parser().parse_args(flags))[0])
        axes[size, count] = " + ".join(_axes(plans.simplest())) or ONE_GPU if plans.fits else NOTHING
    return axes


def _why_none_fits(job: Job, result: SearchResult) -> list[str]:
    """The lines that explain why no mesh fits, and what would help."""
    if not result.smallest:
        return [
            f"None of {result.tried:,} meshes can run, for the reasons below. Try another number of GPUs or "
            "--tokens-per-update."
        ]
    plan, memory = result.smallest, result.smallest.memory
    state_bytes = memory.weights + memory.gradients + memory.optimizer
    helps = "More GPUs or more memory" if state_bytes > job.limit else "More GPUs, more memory or a shorter window"
    return [
        f"None of {result.tried} meshes fits.",
        f"The smallest is {name(plan)} ({way(plan)}): {with_prefix(memory.total, 'B')}, {_largest(plan)}. "
        f"{helps}{_enough_gpus(job)}.",
    ]


def _enough_gpus(job: Job) -> str:
    """The smallest number of GPUs that is enough, as the end of a sentence, or "" if none is.

    It tries twice, four times, up to 64 times the job's GPUs, at most 16,384.
    """
    for doublings in range(1, 7):
        gpus = job.cluster.gpus * 2**doublings
        if gpus > 2**14 or (gpus > job.cluster.per_node and gpus % job.cluster.per_node):
            continue
        if search(replace(job, cluster=replace(job.cluster, gpus=gpus))).fits:
            return f"; {gpus:,} GPUs would be enough"
    return ""


def _table(plans: list[Plan], job: Job) -> list[str]:
    lines = [f"{'mesh':24} {'memory, GB':>12}  {'fits':7} {'bubble':>6} {'waiting':>8} {'step':>24} {'MFU':>4}  how"]
    for plan in plans:
        step, interval = plan.step, step_interval(job, plan.layout)
        seconds = f"{format_seconds(step.total)} ({format_seconds(interval.low)} - {format_seconds(interval.high)})"
        lines.append(
            f"{name(plan):24} {memory_range(plan):>12}  {verdict(plan, job):7} {step.idle_share:>6.1%} "
            f"{format_seconds(step.waiting):>8} {seconds:>24} {step.mfu:>4.0%}  {way(plan)}"
        )
    return lines


def memory_range(plan: Plan) -> str:
    """The memory in GB, as "total - highest": by the formulas, and the most that a trainer may hold."""
    return f"{plan.memory.total / 1e9:.3g} - {plan.memory.highest / 1e9:.3g}"


def verdict(plan: Plan, job: Job) -> str:
    """Whether the plan fits into the memory: "yes", "no" or "may not"."""
    if plan.memory.total > job.limit:
        return "no"
    return "may not" if plan.memory.highest > job.limit else "yes"


def _details(plan: Plan) -> list[str]:
    """The lines on what a GPU holds and sends, each with the notebook of its formula."""
    parts = {part: size for part, size in vars(plan.memory).items() if size}
    lines = ["  held on a GPU:"]
    lines += [f"    {part:12} {with_prefix(size, 'B'):>9}  [{MEMORY_NOTEBOOKS[part]}]" for part, size in parts.items()]
    lines += ["  sent by a GPU per step:"] if plan.step.sent else []
    overlap = {"none": "waited for", "all": "behind the computation", "last": "behind the last backward pass"}
    for message in plan.step.sent:
        link = "the links inside a node" if message.link == "inside" else "the network"
        notebook = AXIS_NOTEBOOKS[message.axis]
        lines.append(
            f"    {message.axis:12} {with_prefix(message.bytes, 'B'):>9}  [{notebook}] over {link}, "
            f"{format_seconds(message.seconds)}, {overlap[message.overlap]}"
        )
    if plan.layout.pp > 1:
        lines.append(f"  bubble: {plan.step.idle_share:.1%} of the computing [23]")
    lines.append(f"  the optimizer's step: {format_seconds(plan.step.updating)} [15]")
    return lines


def _against_quickest(job: Job, layout: Layout, result: SearchResult) -> str:
    """The step of the best layout with these axes, and by how much it is longer than the quickest; or why refused."""
    plan = best_way(job, layout)
    if plan.refused:
        return f"refused: {plan.refused}"
    if plan.memory.total > job.limit:
        return f"refused: {with_prefix(plan.memory.total, 'B')} of {with_prefix(job.limit, 'B')}, {_largest(plan)}"
    over = plan.step.total / result.fits[0].step.total - 1
    return f"{format_seconds(plan.step.total)}, {over:.0%} over the quickest ({way(plan)})"


def _largest(plan: Plan) -> str:
    """The largest part of the memory, such as "most of it weights"."""
    parts = vars(plan.memory)
    largest = max(parts, key=parts.get)
    return f"most of it {largest}" if parts[largest] > plan.memory.total / 2 else f"{largest} the largest part"


def format_seconds(value: float) -> str:
    """Three digits of the seconds, in s or ms."""
    scale, unit = (1, "s") if value >= 0.1 else (1e3, "ms")
    return f"{format_number(float(f'{scale * value:.3g}'))} {unit}"
