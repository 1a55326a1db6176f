"""What `--published` prints: the meshes that others trained on or measured, each beside the plan's best."""

from ddp_course.base.quantity import with_prefix
from ddp_course.plan import playbook, published
from ddp_course.plan.report import name


def published_report() -> str:
    runs = published.RUNS
    lines = ["Training runs", "", *_runs(runs), "", BESIDE]
    for note in dict.fromkeys(run.note for run in runs if run.note):
        lines.append(f"  {'; '.join(run.name for run in runs if run.note == note)}: {note}")
    lines += ["", *sorted({source for run in runs for source in (run.source, run.measured) if source})]
    lines += [
        "",
        f"The best of several thousand configurations that were measured: {len(playbook.RUNS)} of the "
        "Ultra-Scale Playbook",
        "",
        *_measured(),
        "",
        DIFFERS,
        "",
        playbook.PLAYBOOK,
        playbook.PICTURE,
        playbook.SCRIPT,
    ]
    return "\n".join(lines)


BESIDE = "MFU: by the formulas, and as reported. Over best: the step over that of the plan's best mesh. What differs:"
DIFFERS = """Held: by the formulas, and as measured. Over best: the step over that of the plan's best mesh of those that
were tried there (no cp, ZeRO-2, ZeRO-3 or checkpointing). What differs:
  held: a trainer holds more than the formulas count; of what, the picture does not say
  MFU: the formulas have the same kernels on every mesh, and hide messages as far as computation lasts; 64 nodes have
    two GPUs for every window of an update
  mesh: on up to eight nodes pp 2 was often measured to be the best, where the formulas prefer shard alone or with tp
  refused: the plan tries neither tp beyond a node nor fewer micro-batches than stages"""


def _runs(runs) -> list[str]:
    lines = [
        f"{'published':30} {'mesh':22} {'held':>8} {'fits':>5} {'MFU':>5} {'reported':>9} {'over best':>10}  "
        "the plan's best"
    ]
    for run in runs:
        found = published.compared(run)
        seen = found["seen"]
        lines.append(
            f"{run.name:30} {name(seen):22} {with_prefix(seen.memory.total, 'B'):>8} "
            f"{'yes' if found['fits'] else 'no':>5} {seen.step.mfu:>5.0%} {run.mfu:>9.0%} "
            f"{found['slower']:>10.0%}  {name(found['best'])}"
        )
    return lines


def _measured() -> list[str]:
    lines = [
        f"{'model on GPUs':18} {'mesh':21} {'held':>8} {'measured':>9} {'fits':>5} {'MFU':>5} {'measured':>9} "
        f"{'over best':>10}  the plan's best"
    ]
    for one in playbook.RUNS:
        seen, best = one.run.plan(), playbook.best(one.size, one.nodes).fits[0]
        over = "refused" if seen.refused else f"{seen.step.total / best.step.total - 1:.0%}"
        lines.append(
            f"{one.run.name:18} {name(seen):21} {with_prefix(seen.memory.total, 'B'):>8} "
            f"{with_prefix(one.held, 'B'):>9} {'yes' if seen.memory.total <= one.run.job.limit else 'no':>5} "
            f"{seen.step.mfu:>5.0%} {one.run.mfu:>9.0%} {over:>10}  {name(best)}"
        )
    for size, nodes in playbook.NOT_RUN:
        fits = "yes" if playbook.best(size, nodes).fits else "no"
        lines.append(f"{f'{size} on {8 * nodes} H100':18} {'not run':21} {'':>8} {'':>9} {fits:>5}")
    return lines
