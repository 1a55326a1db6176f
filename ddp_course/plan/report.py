"""What is printed of a plan: its table, with the notebook of each number, and why other meshes are refused."""

from dataclasses import replace

from ddp_course.base.quantity import format_number, with_prefix
from ddp_course.plan.memory import Layout
from ddp_course.plan.search import SAME, USABLE, Found, Job, Plan, best_way, search, simple
from ddp_course.plan.traffic import FROM, KERNELS, LINK_SHARE

SHOWN = 5
UNKNOWN = f"""What this does not know: how fast your kernels are (--kernels: {KERNELS:g} of the peak assumed, on every
mesh, though tp and cp make them smaller); how much of a message your trainer hides (assumed: of tp, cp and ep nothing,
of the others what fits behind the computation); a network that others use ({LINK_SHARE:.0%} of the links assumed); the
data loader, checkpoints; what your trainer holds besides (measured: in all up to 1.6 times this, --published);
your MLP, unless you give --mlp and --gated. Measure the first two or three plans: steps within {SAME - 1:.0%} are equal
here."""


def name(plan: Plan) -> str:
    """The axes with more than one rank."""
    layout = plan.layout
    axes = " ".join(
        f"{axis} {getattr(layout, axis)}"
        for axis in ("pp", "dp", "shard", "cp", "tp", "ep")
        if getattr(layout, axis) > 1
    )
    return axes or "one GPU"


def way(plan: Plan) -> str:
    layout, words = plan.layout, []
    if layout.shards > 1:
        words.append(f"ZeRO-{layout.zero}")
    words.append(f"{plan.micro_batches} x {layout.micro_batch} windows")
    words += ["checkpointing"] * layout.recompute + [f"{layout.chunks} chunks"] * (layout.chunks > 1)
    return ", ".join(words)


def report(job: Job, said: list[str], found: Found) -> str:
    model, cluster = job.model, job.cluster
    cards = f"{cluster.gpus:,} GPU{'s' * (cluster.gpus > 1)}"
    lines = [
        f"{model.parameters / 1e9:.4g} billion parameters, {model.layers} layers, {model.width:,} wide, "
        f"{model.heads} heads, windows of {model.context:,} tokens, {job.tokens:,} tokens per update; "
        f"{cards}, {USABLE:.0%} of the memory usable: {with_prefix(job.limit, 'B')}"
    ]
    if said:
        lines.append(f"derived or assumed, give them if yours differ: {' '.join(said)}")
    if found.fits:
        lines += ["", f"{len(found.fits)} of {found.tried} meshes fit. The quickest, per GPU and update:", ""]
        lines += _table(found.fits[:SHOWN])
        simplest = found.simplest()
        lines += ["", f"Simplest within {SAME - 1:.0%} of the quickest: {name(simplest)} ({way(simplest)})"]
        lines += ["", *_details(simplest)]
    else:
        lines += ["", *_nothing(job, found)]
    lines += ["", "Meshes refused, by reason (notebook):"]
    lines += [f"  {times:>5}  {reason}" for reason, times in found.refused.most_common()] or ["  none"]
    if cluster.gpus > 1:
        lines += ["", "The simple ones:"]
        lines += [f"  {what:34} {_verdict(job, layout, found)}" for what, layout in simple(job).items()]
    return "\n".join([*lines, "", UNKNOWN])


def _nothing(job: Job, found: Found) -> list[str]:
    """Why, and what would help."""
    if not found.nearest:
        return [
            f"None of {found.tried:,} meshes can run, for the reasons below. Try another number of GPUs or "
            "--tokens-per-update."
        ]
    plan, held = found.nearest, found.nearest.memory
    lasting = held.weights + held.gradients + held.optimizer
    helps = "More GPUs or more memory" if lasting > job.limit else "More GPUs, more memory or a shorter window"
    return [
        f"None of {found.tried} meshes fits.",
        f"The smallest is {name(plan)} ({way(plan)}): {with_prefix(held.total, 'B')}, {_largest(plan)}. "
        f"{helps}{enough(job)}.",
    ]


def enough(job: Job) -> str:
    """How many GPUs would be enough, of twice as many, four times, up to 64 times and 16,384."""
    for doubled in range(1, 7):
        gpus = job.cluster.gpus * 2**doubled
        if gpus > 2**14 or (gpus > job.cluster.per_node and gpus % job.cluster.per_node):
            continue
        if search(replace(job, cluster=replace(job.cluster, gpus=gpus))).fits:
            return f"; {gpus:,} GPUs would be enough"
    return ""


def _table(plans: list[Plan]) -> list[str]:
    lines = [f"{'mesh':28} {'memory':>8} {'computing':>10} {'bubble':>7} {'waiting':>8} {'step':>8} {'MFU':>5}  how"]
    for plan in plans:
        step = plan.step
        idle = step.bubble / (1 + step.bubble)
        held = with_prefix(plan.memory.total, "B")
        lines.append(
            f"{name(plan):28} {held:>8} {_seconds(step.computing):>10} {idle:>7.1%} "
            f"{_seconds(step.waiting):>8} {_seconds(step.total):>8} {step.mfu:>5.0%}  "
            f"{way(plan)}"
        )
    return lines


def _details(plan: Plan) -> list[str]:
    held = {"weights": "17", "gradients": "17", "optimizer": "17", "gathered": "17.3", "activations": "7b, 22, 23, 24"}
    lines = ["  held on a GPU:"]
    lines += [
        f"    {part:12} {with_prefix(getattr(plan.memory, part), 'B'):>9}  [{notebook}]"
        for part, notebook in held.items()
        if getattr(plan.memory, part)
    ]
    lines += ["  sent by a GPU per update:"] if plan.step.sent else []
    behind = {"waited": "waited for", "all": "behind the computation", "last": "behind the last backward pass"}
    for one in plan.step.sent:
        link = f"the links {one.link} a node" if one.link == "inside" else "the network"
        lines.append(
            f"    {one.axis:12} {with_prefix(one.bytes, 'B'):>9}  [{FROM[one.axis]}] over {link}, "
            f"{_seconds(one.seconds)}, {behind[one.how]}"
        )
    if plan.layout.pp > 1:
        lines.append(f"  bubble: {plan.step.bubble / (1 + plan.step.bubble):.1%} of the computing [23]")
    lines.append(f"  the optimizer's step: {_seconds(plan.step.updating)} [15]")
    return lines


def _verdict(job: Job, layout: Layout, found: Found) -> str:
    plan = best_way(job, layout)
    if plan.refused:
        return f"refused: {plan.refused}"
    if plan.memory.total > job.limit:
        return f"refused: {with_prefix(plan.memory.total, 'B')} of {with_prefix(job.limit, 'B')}, {_largest(plan)}"
    over = plan.step.total / found.fits[0].step.total - 1
    return f"{_seconds(plan.step.total)}, {over:.0%} over the quickest ({way(plan)})"


def _largest(plan: Plan) -> str:
    parts = vars(plan.memory)
    most = max(("weights", "gradients", "optimizer", "gathered", "activations"), key=parts.get)
    return f"most of it {most}" if parts[most] > plan.memory.total / 2 else f"{most} the largest part"


def _seconds(value: float) -> str:
    return (
        f"{format_number(float(f'{value:.3g}'))} s"
        if value >= 0.1
        else f"{format_number(float(f'{1e3 * value:.3g}'))} ms"
    )
