"""What is printed: a plan's table with the notebook of each number, and the published meshes beside the plan's best."""

from ddp_course.lab.quantity import format_number, with_prefix
from ddp_course.plan.memory import Mesh
from ddp_course.plan.published import RUNS, compared
from ddp_course.plan.search import SAME, USABLE, Found, Job, Plan, best_way, simple
from ddp_course.plan.traffic import FROM, KERNELS, LINK_SHARE

SHOWN = 5
UNKNOWN = f"""What this does not know: how fast your kernels are (--kernels: {KERNELS:g} of the peak assumed, on every
mesh, though tp and cp make them smaller); how much of a message your trainer hides (assumed: of tp, cp and ep nothing,
of the others what fits behind the computation); a network that others use ({LINK_SHARE:.0%} of the links assumed); the
data loader, the optimizer's step, checkpoints; your MLP's width (assumed: a GPT's block, 16 widths per token). Measure
the first two or three plans: steps within {SAME - 1:.0%} are equal here."""


def name(plan: Plan) -> str:
    """The axes with more than one rank."""
    mesh = plan.mesh
    axes = " ".join(f"{axis} {getattr(mesh, axis)}" for axis in ("pp", "dp", "shard", "cp", "tp", "ep")
                    if getattr(mesh, axis) > 1)  # fmt: skip
    return axes or "one GPU"


def way(plan: Plan) -> str:
    mesh, words = plan.mesh, []
    if mesh.shards > 1:
        words.append(f"ZeRO-{mesh.zero}")
    words.append(f"{plan.micro_batches} x {mesh.micro_batch} windows")
    words += ["checkpointing"] * mesh.recompute + [f"{mesh.chunks} chunks"] * (mesh.chunks > 1)
    return ", ".join(words)


def report(job: Job, said: list[str], found: Found) -> str:
    model, cluster = job.model, job.cluster
    lines = [f"{model.parameters / 1e9:.4g} billion parameters, {model.layers} layers, {model.width:,} wide, "
             f"{model.heads} heads, windows of {model.context:,} tokens, {job.tokens:,} tokens per update; "
             f"{cluster.gpus:,} GPUs, {USABLE:.0%} of the memory usable: {with_prefix(job.limit, 'B')}"]  # fmt: skip
    if said:
        lines.append(f"derived or assumed, give them if yours differ: {' '.join(said)}")
    if found.fits:
        lines += ["", f"{len(found.fits)} of {found.tried} meshes fit. The quickest, per GPU and update:", ""]
        lines += _table(found.fits[:SHOWN])
        simplest = found.simplest()
        lines += ["", f"Simplest within {SAME - 1:.0%} of the quickest: {name(simplest)} ({way(simplest)})"]
        lines += ["", *_details(simplest)]
    else:
        lines += ["", f"None of {found.tried} meshes fits."]
        if found.nearest:
            lines.append(f"The smallest is {name(found.nearest)} ({way(found.nearest)}): "
                         f"{with_prefix(found.nearest.memory.total, 'B')}, {_largest(found.nearest)}. More GPUs, more "
                         "memory or a shorter window.")  # fmt: skip
    lines += ["", "Meshes refused, by reason (notebook):"]
    lines += [f"  {times:>5}  {reason}" for reason, times in found.refused.most_common()] or ["  none"]
    lines += ["", "The simple ones:"]
    lines += [
        f"  {what:34} {_verdict(job, mesh, found)}" for what, mesh in simple(job).items() if mesh.gpus == cluster.gpus
    ]
    return "\n".join([*lines, "", UNKNOWN])


def _table(plans: list[Plan]) -> list[str]:
    lines = [f"{'mesh':28} {'memory':>8} {'computing':>10} {'bubble':>7} {'waiting':>8} {'step':>8} {'MFU':>5}  how"]
    for plan in plans:
        step = plan.step
        idle = step.bubble / (1 + step.bubble)
        held = with_prefix(plan.memory.total, "B")
        lines.append(f"{name(plan):28} {held:>8} {_seconds(step.computing):>10} {idle:>7.1%} "
                     f"{_seconds(step.waiting):>8} {_seconds(step.total):>8} {step.mfu:>5.0%}  "
                     f"{way(plan)}")  # fmt: skip
    return lines


def _details(plan: Plan) -> list[str]:
    held = {"weights": "17", "gradients": "17", "optimizer": "17", "gathered": "17.3", "activations": "7b, 22, 23, 24"}
    lines = ["  held on a GPU:"]
    lines += [f"    {part:12} {with_prefix(getattr(plan.memory, part), 'B'):>9}  [{notebook}]"
              for part, notebook in held.items() if getattr(plan.memory, part)]  # fmt: skip
    lines += ["  sent by a GPU per update:"] if plan.step.sent else []
    behind = {"waited": "waited for", "all": "behind the computation", "last": "behind the last backward pass"}
    for one in plan.step.sent:
        link = f"the links {one.link} a node" if one.link == "inside" else "the network"
        lines.append(f"    {one.axis:12} {with_prefix(one.bytes, 'B'):>9}  [{FROM[one.axis]}] over {link}, "
                     f"{_seconds(one.seconds)}, {behind[one.how]}")  # fmt: skip
    if plan.mesh.pp > 1:
        lines.append(f"  bubble: {plan.step.bubble / (1 + plan.step.bubble):.1%} of the computing [23]")
    return lines


def _verdict(job: Job, mesh: Mesh, found: Found) -> str:
    plan = best_way(job, mesh)
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


def published_report() -> str:
    lines = [
        f"{'published':30} {'mesh':22} {'memory':>8} {'fits':>5} {'MFU here':>9} {'reported':>9} "
        f"{'over best':>10}  the plan's best"
    ]
    for run in RUNS:
        found = compared(run)
        seen, best = found["seen"], found["best"]
        reported = f"{run.mfu:.0%}" if run.mfu else "-"
        lines.append(f"{run.name:30} {name(seen):22} {with_prefix(seen.memory.total, 'B'):>8} "
                     f"{'yes' if found['fits'] else 'no':>5} {seen.step.mfu:>9.0%} {reported:>9} "
                     f"{found['slower']:>10.0%}  {name(best)}")  # fmt: skip
    lines += ["", "MFU here: by the formulas; over best: its step over that of the plan's best. What differs:"]
    for note in dict.fromkeys(run.note for run in RUNS if run.note):
        lines.append(f"  {'; '.join(run.name for run in RUNS if run.note == note)}: {note}")
    return "\n".join([*lines, "", *sorted({run.source for run in RUNS})])
