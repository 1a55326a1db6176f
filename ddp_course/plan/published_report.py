"""What `--published` prints: the meshes that others trained on or measured, each beside the plan's best."""

from ddp_course.base.quantity import with_prefix
from ddp_course.plan import playbook, published
from ddp_course.plan.report import name

OVER = "Over best: the step over that of the plan's best mesh"
COMPARISON = f"MFU: by the formulas, and as reported. {OVER}. What differs:"
DIFFERENCES = f"""Held: by the formulas, and as measured. {OVER} of those that
were tried there (no cp, ZeRO-2, ZeRO-3 or checkpointing). What differs:
  held: a trainer holds more than the formulas count; of what, the picture does not say
  MFU: the formulas have the same kernels on every mesh, and hide messages as far as computation lasts; 64 nodes have
    two GPUs for every window of an update
  mesh: on up to eight nodes pp 2 was often measured to be the best, where the formulas prefer shard alone or with tp
  refused: the plan tries neither tp beyond a node nor fewer micro-batches than stages"""


def published_report() -> str:
    runs = published.RUNS
    lines = ["Training runs", "", *_runs(runs), "", COMPARISON]
    for note in dict.fromkeys(run.note for run in runs if run.note):
        lines.append(f"  {'; '.join(run.name for run in runs if run.note == note)}: {note}")
    lines += ["", *sorted({source for run in runs for source in (run.source, run.measured) if source}), ""]
    lines.append(
        f"The best of several thousand configurations that were measured: {len(playbook.RUNS)} of the Ultra-Scale "
        "Playbook"
    )
    sources = (published.PLAYBOOK, playbook.PICTURE, playbook.SCRIPT)
    return "\n".join([*lines, "", *_measured(), "", DIFFERENCES, "", *sources])


def _runs(runs) -> list[str]:
    lines = [
        f"{'published':30} {'mesh':22} {'held':>8} {'fits':>5} {'MFU':>5} {'reported':>9} {'over best':>10}  "
        "the plan's best"
    ]
    for run in runs:
        comparison = published.compared(run)
        plan = comparison["plan"]
        lines.append(
            f"{run.name:30} {name(plan):22} {_memory(plan, run.job)} {plan.step.mfu:>5.0%} {run.mfu:>9.0%} "
            f"{comparison['slower']:>10.0%}  {name(comparison['best'])}"
        )
    return lines


def _measured() -> list[str]:
    lines = [
        f"{'model on GPUs':18} {'mesh':21} {'held':>8} {'measured':>9} {'fits':>5} {'MFU':>5} {'measured':>9} "
        f"{'over best':>10}  the plan's best"
    ]
    for cell in playbook.RUNS:
        plan, best = cell.run.plan(), playbook.best(cell.size, cell.nodes).fits[0]
        over = "refused" if plan.refused else f"{plan.step.total / best.step.total - 1:.0%}"
        lines.append(
            f"{cell.run.name:18} {name(plan):21} {_memory(plan, cell.run.job, cell.memory)} {plan.step.mfu:>5.0%} "
            f"{cell.run.mfu:>9.0%} {over:>10}  {name(best)}"
        )
    for size, nodes in playbook.NOT_RUN:
        fits = "yes" if playbook.best(size, nodes).fits else "no"
        lines.append(f"{f'{size} on {8 * nodes} H100':18} {'not run':21} {'':>8} {'':>9} {fits:>5}")
    return lines


def _memory(plan, job, measured: float | None = None) -> str:
    also = f" {with_prefix(measured, 'B'):>9}" if measured else ""
    return f"{with_prefix(plan.memory.total, 'B'):>8}{also} {'yes' if plan.memory.total <= job.limit else 'no':>5}"
