"""Every mesh of a number of GPUs: refused with a reason, or an update's memory and seconds; the quickest first."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from ddp_course.plan.assumptions import ASSUMED, KERNELS_SPREAD, Range
from ddp_course.plan.ddp_step import Interval, draw, interval
from ddp_course.plan.job import Job
from ddp_course.plan.memory import Layout, Memory, layers_here, memory
from ddp_course.plan.traffic import Step, micro_batches, step

TOO_LARGE = "does not fit into the memory (17, 7b)"
SAME = 1.05  # steps that differ by less than the model can tell
STEP_DRAWS = 200


@dataclass(frozen=True)
class Plan:
    """One layout, evaluated. refused: why it cannot run; empty if it can."""

    layout: Layout
    refused: str = ""
    micro_batches: int = 0
    memory: Memory | None = None
    step: Step | None = None

    @property
    def axes(self) -> int:
        return sum(size > 1 for size in self.layout.axes)


@dataclass
class SearchResult:
    """fits: quickest first, one per layout. refused: reason -> meshes. nearest: of those too large, the smallest."""

    fits: list[Plan] = field(default_factory=list)
    refused: Counter = field(default_factory=Counter)
    nearest: Plan | None = None
    tried: int = 0

    def simplest(self) -> Plan:
        """The plan with the fewest axes among the quickest; without checkpointing or sharding if possible."""
        return simplest(self.fits)

    def distinct(self) -> list[Plan]:
        """The simplest of each (pp, tp), in the order of the quickest: dp, shard and cp divide what is left."""
        groups = {}
        for plan in self.fits:
            groups.setdefault((plan.layout.pp, plan.layout.tp), []).append(plan)
        return [simplest(plans) for plans in groups.values()]


def simplest(plans: list[Plan]) -> Plan:
    """plans: the quickest first."""
    close = [plan for plan in plans if plan.step.total <= SAME * plans[0].step.total]
    return min(close, key=lambda plan: (plan.axes, plan.layout.recompute, plan.layout.zero, plan.step.total))


def step_interval(job: Job, layout: Layout) -> Interval:
    """Seconds of an update, if kernels, links and the share of messages that is waited for are not known."""
    kernels = job.cluster.kernels
    ranges = {
        "kernels": Range((1 - KERNELS_SPREAD) * kernels, min(1.0, (1 + KERNELS_SPREAD) * kernels)),
        "link_share": ASSUMED["link_share"],
        "exposed": Range(0.0, 1.0),
    }
    seconds = []
    for known in draw(ranges, STEP_DRAWS):
        exposed = known.pop("exposed")
        seconds.append(step(replace(job, cluster=replace(job.cluster, **known)), layout, exposed).total)
    return interval(seconds)


def evaluate(job: Job, layout: Layout) -> Plan:
    """Without its step if the memory is too small."""
    reason = cannot(job, layout)
    if reason:
        return Plan(layout, reason)
    count = micro_batches(job.model, layout, job.tokens)
    own = (job.trainer.state, job.trainer.whole_inputs) if job.trainer else ()
    size = memory(job.model, layout, count, job.precision, *own)
    return Plan(layout, "", count, size, step(job, layout) if size.total <= job.limit else None)


def cannot(job: Job, layout: Layout) -> str:
    """Why no trainer, or not the job's, could cut the model so, or ""; what would be slow is refused, too (26.5)."""
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
        return "the update's windows do not divide over the data ranks (26)"
    if layout.pp > 1 and windows // data // layout.micro_batch < layout.pp:
        return "fewer micro-batches than stages: most of the time is bubble (23)"
    if layout.chunks > 1 and layers_here(model, layout) % layout.chunks:
        return "a stage's layers do not divide into chunks (23)"
    return job.trainer.cannot(job, layout) if job.trainer else ""


def search(job: Job, allowed: Callable[[Layout], bool] | None = None) -> SearchResult:
    """allowed: what a trainer can do; everything if not given."""
    result, best, failed = SearchResult(), {}, {}
    for layout in filter(allowed, meshes(job)):
        plan, axes = evaluate(job, layout), layout.axes
        if plan.refused:
            failed.setdefault(axes, plan.refused)
        elif plan.step is None:
            failed[axes] = TOO_LARGE
            if result.nearest is None or plan.memory.total < result.nearest.memory.total:
                result.nearest = plan
        elif axes not in best or plan.step.total < best[axes].step.total:
            best[axes] = plan
    result.fits = sorted(best.values(), key=lambda plan: (plan.step.total, plan.axes))
    result.refused = Counter(reason for axes, reason in failed.items() if axes not in best)
    result.tried = len(best.keys() | failed.keys())
    return result


def meshes(job: Job) -> Iterator[Layout]:
    """Every factorisation of the GPUs, and the ways to run an update on it."""
    gpus, model = job.cluster.gpus, job.model
    for tp in divisors(gpus):  # the last axis counts fastest: tp's ranks are neighbours (26.1)
        for cp in divisors(gpus // tp):
            for pp in divisors(gpus // tp // cp):
                data = gpus // tp // cp // pp
                for shard in divisors(data):
                    for ep in [ep for ep in divisors(data * cp) if ep <= 64] if model.experts else (1,):
                        yield from ways(Layout(pp, data // shard, shard, cp, tp, ep))


def ways(layout: Layout) -> Iterator[Layout]:
    """The settings that an update can vary on the same axes."""
    for zero in (1, 2, 3) if layout.shard > 1 else (0,):
        for micro_batch in (1, 2, 4, 8) if layout.pp == 1 else (1, 2):
            for recompute in (False, True):
                for chunks in (1,) if layout.pp == 1 else (1, 2, 4):
                    yield Layout(*layout.axes, zero, micro_batch, recompute, chunks)


def simple(job: Job) -> dict[str, Layout]:
    """The meshes that people ask about first, each axis as far as it goes without another; on one node some are the
    same."""
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
    """The quickest way that fits to run an update on these axes, else the smallest, else why it is refused."""
    plans = [evaluate(job, way) for way in ways(layout)]
    fitting = [plan for plan in plans if plan.step]
    if fitting:
        return min(fitting, key=lambda plan: plan.step.total)
    possible = [plan for plan in plans if not plan.refused]
    return min(possible, key=lambda plan: plan.memory.total, default=plans[0])


def divisors(number: int) -> list[int]:
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return small + [number // divisor for divisor in reversed(small) if divisor**2 != number]
