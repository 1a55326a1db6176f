"""Evaluate every mesh of the GPUs: memory and seconds of an optimizer step, or the reason why the mesh is refused."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from ddp_course.plan.assumptions import ASSUMED, KERNELS_SPREAD
from ddp_course.plan.job import Job
from ddp_course.plan.memory import Layout, Memory, layers_per_stage, memory
from ddp_course.plan.traffic import Step, micro_batches, step
from ddp_course.plan.uncertainty import Interval, Range, draw, interval

TOO_LARGE = "does not fit into the memory (17, 7b)"
SAME = 1.05  # a ratio of steps below which the formulas cannot tell which is quicker
STEP_DRAWS = 200


@dataclass(frozen=True)
class Plan:
    """The evaluation of a layout.

    refused: the reason, "" if it is not refused. memory: None if refused. step: None if refused or if the memory is too
    small. `Published.plan` always sets both.
    """

    layout: Layout
    refused: str = ""
    micro_batches: int = 0
    memory: Memory | None = None
    step: Step | None = None

    @property
    def axes(self) -> int:
        """The number of axes with more than one rank."""
        return sum(size > 1 for size in self.layout.axes)


@dataclass
class SearchResult:
    """The result of a search over meshes; a mesh is a tuple of the axes' sizes.

    fits: the quickest plan of each mesh that fits, the quickest first. refused: reason -> number of meshes. smallest:
    the plan with the least memory among those that are too large. tried: the number of meshes.
    """

    fits: list[Plan] = field(default_factory=list)
    refused: Counter = field(default_factory=Counter)
    smallest: Plan | None = None
    tried: int = 0

    def simplest(self) -> Plan:
        """The plan with the fewest axes among those whose step is at most SAME times that of the quickest.

        Ties: without checkpointing, then the lowest stage of ZeRO, then the quickest.
        """
        return _simplest(self.fits)

    def distinct(self) -> list[Plan]:
        """The simplest plan of each (pp, tp), ordered by the quickest of each; dp, shard, cp and ep are its choice."""
        groups = {}
        for plan in self.fits:
            groups.setdefault((plan.layout.pp, plan.layout.tp), []).append(plan)
        return [_simplest(plans) for plans in groups.values()]


def _simplest(plans: list[Plan]) -> Plan:
    """`SearchResult.simplest` of these plans. plans: sorted, the quickest first."""
    close = [plan for plan in plans if plan.step.total <= SAME * plans[0].step.total]
    return min(close, key=lambda plan: (plan.axes, plan.layout.recompute, plan.layout.zero, plan.step.total))


def step_interval(job: Job, layout: Layout) -> Interval:
    """The interval of an optimizer step's seconds over STEP_DRAWS draws of what is not known.

    Drawn are the speed of the kernels, the share of the links' speed and the share of messages that is waited for.
    """
    kernels = job.cluster.kernels
    ranges = {
        "kernels": Range((1 - KERNELS_SPREAD) * kernels, min(1.0, (1 + KERNELS_SPREAD) * kernels)),
        "link_share": ASSUMED["link_share"],
        "exposed": Range(0.0, 1.0),
    }
    seconds = []
    for assumed in draw(ranges, STEP_DRAWS):
        exposed = assumed.pop("exposed")
        seconds.append(step(replace(job, cluster=replace(job.cluster, **assumed)), layout, exposed).total)
    return interval(seconds)


def evaluate(job: Job, layout: Layout) -> Plan:
    """The plan of a layout: refused, or with its memory and, if that fits, its step."""
    reason = refusal_reason(job, layout)
    if reason:
        return Plan(layout, reason)
    count = micro_batches(job, layout)
    settings = (job.trainer.state, job.trainer.gathered_inputs) if job.trainer else ()
    needed = memory(job.model, layout, count, job.precision, *settings)
    return Plan(layout, "", count, needed, step(job, layout) if needed.total <= job.limit else None)


def refusal_reason(job: Job, layout: Layout) -> str:
    """Why the layout is refused, or "": no trainer can run it, the job's trainer cannot, or it would be slow (26.5)."""
    model, data = job.model, layout.dp * layout.shard
    if layout.tp > job.cluster.per_node:
        return "tp would cross nodes, and every layer waits for its messages (22, 26)"
    if model.heads % layout.tp:
        return f"{model.heads} heads do not divide by tp (22)"
    if layout.pp > model.layers:
        return "more stages than layers (23)"
    if model.context % (2 * layout.cp) and layout.cp > 1:
        return "the window does not divide into 2 cp parts (24)"
    if layout.ep > 1 and data * layout.cp % layout.ep:
        return "ep does not divide the data ranks (24)"
    windows = job.windows
    if windows % data or windows // data % layout.micro_batch:
        return "the step's windows do not divide over the data ranks (26)"
    if layout.pp > 1 and windows // data // layout.micro_batch < layout.pp:
        return "fewer micro-batches than stages: most of the time is bubble (23)"
    if layout.chunks > 1 and layers_per_stage(model, layout) % layout.chunks:
        return "a stage's layers do not divide into chunks (23)"
    return job.trainer.refusal_reason(job, layout) if job.trainer else ""


def search(job: Job, allowed: Callable[[Layout], bool] | None = None) -> SearchResult:
    """Evaluate every layout on every mesh of the job's GPUs; with `allowed`, only those for which it is true."""
    result, best, failed = SearchResult(), {}, {}  # best, failed: axes -> plan, reason
    for layout in filter(allowed, meshes(job)):
        plan, axes = evaluate(job, layout), layout.axes
        if plan.refused:
            failed.setdefault(axes, plan.refused)
        elif plan.step is None:
            failed[axes] = TOO_LARGE
            if result.smallest is None or plan.memory.total < result.smallest.memory.total:
                result.smallest = plan
        elif axes not in best or plan.step.total < best[axes].step.total:
            best[axes] = plan
    result.fits = sorted(best.values(), key=lambda plan: (plan.step.total, plan.axes))
    result.refused = Counter(reason for axes, reason in failed.items() if axes not in best)
    result.tried = len(best.keys() | failed.keys())
    return result


def meshes(job: Job) -> Iterator[Layout]:
    """Every layout: each factorisation of the GPUs, with each of its `ways`."""
    gpus, model = job.cluster.gpus, job.model
    for tp in divisors(gpus):
        for cp in divisors(gpus // tp):
            for pp in divisors(gpus // tp // cp):
                data = gpus // tp // cp // pp
                for shard in divisors(data):
                    for ep in [ep for ep in divisors(data * cp) if ep <= 64] if model.expert_parameters else (1,):
                        yield from ways(Layout(pp, data // shard, shard, cp, tp, ep))


def ways(layout: Layout) -> Iterator[Layout]:
    """Every layout with the axes of this one: ZeRO's stage, micro-batch, checkpointing and chunks vary."""
    axes = layout.axes
    for zero in (1, 2, 3) if layout.shard > 1 else (0,):
        for micro_batch in (1, 2, 4, 8) if layout.pp == 1 else (1, 2):
            for recompute in (False, True):
                for chunks in (1,) if layout.pp == 1 else (1, 2, 4):
                    yield Layout(*axes, zero, micro_batch, recompute, chunks)


def simple_layouts(job: Job) -> dict[str, Layout]:
    """title -> layout of the meshes that people ask about first.

    They are dp and shard alone; on one node also tp and pp alone, on several one axis in each node and one between.
    """
    gpus, node = job.cluster.gpus, min(job.cluster.gpus, job.cluster.per_node)
    layouts = {"dp alone (DDP)": Layout(dp=gpus), "shard alone (FSDP)": Layout(shard=gpus)}
    if gpus == node:
        return {**layouts, "tp alone": Layout(tp=node), "pp alone": Layout(pp=node)}
    return {
        **layouts,
        "shard in a node, dp between (HSDP)": Layout(shard=node, dp=gpus // node),
        "tp in a node, dp between": Layout(tp=node, dp=gpus // node),
        "tp in a node, shard between": Layout(tp=node, shard=gpus // node),
        "tp in a node, pp between": Layout(tp=node, pp=gpus // node),
    }


def best_way(job: Job, layout: Layout) -> Plan:
    """The plan of the quickest layout with these axes that fits; else of the smallest; else of a refused one."""
    plans = [evaluate(job, way) for way in ways(layout)]
    fitting = [plan for plan in plans if plan.step]
    if fitting:
        return min(fitting, key=lambda plan: plan.step.total)
    possible = [plan for plan in plans if not plan.refused]
    return min(possible, key=lambda plan: plan.memory.total, default=plans[0])


def divisors(number: int) -> list[int]:
    """The divisors of a number, smallest first."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return small + [number // divisor for divisor in reversed(small) if divisor**2 != number]
