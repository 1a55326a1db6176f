"""The text of `plan --published`: published meshes by the formulas, and the formulas' errors."""

from collections.abc import Sequence

from ddp_course.plan import null_model, playbook, published
from ddp_course.plan.assumptions import COUNTED_SHARE
from ddp_course.plan.published import Published
from ddp_course.plan.report import memory_range, name, verdict

FIRST = 3


def published_report() -> str:
    """The text that `plan --published` prints."""
    runs = published.RUNS
    lines = [*_runs(runs), "", "memory: as counted, to as much more as a trainer held. What differs:"]
    for note in dict.fromkeys(run.note for run in runs if run.note):
        lines.append(f"  {_names([run.name for run in runs if run.note == note])}: {note}")
    lines += ["", "Mean and largest error of MFU, and its correlation with what was reported:"]
    lines += _errors("these runs", runs)
    lines += _errors("26 of the Ultra-Scale Playbook", [winner.run for winner in playbook.RUNS])
    lines += [
        f"Of the Playbook's {len(playbook.RUNS)} measured meshes, {playbook.winners_among_first(FIRST)} are among the "
        f"plan's first {FIRST} (pp, tp);",
        f"{playbook.winners_among_fewest(FIRST)} among the {FIRST} that fit with the fewest ranks in pp x tp; "
        f"{playbook.winners_among_fixed(FIRST)} among the same {FIRST} for all, chosen afterwards.",
        f"Of their memory the formulas count {COUNTED_SHARE:.0%} or more.",
    ]
    sources = {source for run in runs for source in (run.source, run.measured) if source}
    return "\n".join([*lines, "", *sorted(sources), published.PLAYBOOK, playbook.PICTURE, playbook.SCRIPT])


def _runs(runs: Sequence[Published]) -> list[str]:
    lines = [
        f"{'published':29} {'mesh':24} {'memory, GB':>11} {'fits':7} {'MFU':>4} {'reported':>8}  step against the best"
    ]
    for run in runs:
        comparison = published.compared(run)
        plan = comparison["plan"]
        lines.append(
            f"{run.name:29} {name(plan):24} {memory_range(plan):>11} {verdict(plan, run.job):7} {plan.step.mfu:>4.0%} "
            f"{run.mfu:>8.0%}  {comparison['slower']:+.0%}: {name(comparison['best'])}"
        )
    return lines


def _names(names: list[str]) -> str:
    """The name of one run, or the first word that several share."""
    return names[0] if len(names) == 1 else f"{names[0].split()[0]} ({len(names)} runs)"


def _errors(title: str, runs: Sequence[Published]) -> list[str]:
    formulas, constant = null_model.of_formulas(runs), null_model.of_constant(runs)
    best = null_model.best_constant([run.mfu for run in runs])
    return [
        f"  {title:30} formulas: {formulas.mean:.0%}, {formulas.largest:.0%}, {formulas.correlation:.1f}; "
        f"the constant {best:.0%}: {constant.mean:.0%}, {constant.largest:.0%}"
    ]
