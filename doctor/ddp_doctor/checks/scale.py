"""Is a step on N ranks that of one process on N times the batch: the gradient's scale, and the learning rate?"""

import statistics

from ddp_doctor.audited import Audit, AuditedRun
from ddp_doctor.checks.finding import Finding, ok, require, unknown, wrong
from ddp_doctor.checks.gradients import CLOSE, used_gradients
from ddp_doctor.checks.replicas import steps_by_optimizer


def tokens(run: AuditedRun) -> Finding:
    """Whether the ranks' losses, of which DDP takes the mean, are means over equal numbers of values."""
    require(steps_by_optimizer(run) and run.data_parallel, "no gradients are averaged, as far as is seen")
    rows = run.rows("backward")
    reductions = {event["reduction"] for row in rows for event in row}
    require(len(reductions) == 1 and reductions != {"other"}, "how the loss is reduced over its batch is not known")
    is_mean = reductions == {"mean"}  # else a sum, which the script may have divided by a count
    unequal = [row for row in rows if len({event["count" if is_mean else "factor"] for event in row}) > 1]
    if 2 * len(unequal) <= len(rows):
        return ok(f"equal shares in {len(rows) - len(unequal)} of {len(rows)} backward passes")
    counts = [event["count"] if is_mean else round(1 / event["factor"]) for event in unequal[0]]
    text = (
        f"each rank's loss is the mean over its own values ({' and '.join(map(str, counts[:4]))} in one pass), and the "
        "mean of these means weighs the values of a short batch more"
    )
    cure = "Divide each rank's sum by the number of values on all ranks (all-reduced), times the world size under DDP."
    return wrong(text, unequal[0][0]["frames"], "S5", cure)


def scale(run: AuditedRun) -> Finding:
    require(steps_by_optimizer(run) and run.data_parallel, "no gradients are averaged, as far as is seen")
    require(not isinstance(run.single, str), f"nothing to compare it with: {run.single}")
    samples, single_samples = _samples_per_step(run), _samples_per_step(run.single)
    growth = samples and single_samples and run.world * samples / single_samples
    rate = _rate_growth(run, run.single)
    factor, single_factor = _gradient_scale(run), _gradient_scale(run.single)
    gradient = factor and single_factor and factor / single_factor
    if rate and growth and rate > 1.05 * max(growth, 1) and not (gradient and gradient < 0.95):
        text = f"the learning rate grows {rate:.3g}-fold from 1 process to {run.world}"
        text += f", the global batch {growth:.3g}-fold"
        cure = "Scale the rate once at most, and by no more than the global batch has grown."
        return wrong(text, run.first("optimizer")["frames"], "S23", cure)
    require(gradient is not None and rate, "the gradient's scale could not be told in one of the runs")
    size = gradient * rate if rate < 0.95 or gradient < 0.95 < 1.05 < rate else gradient
    if abs(size - 1) <= CLOSE:
        text = f"the gradient is scaled as on 1 process, the learning rate {rate:.3g} times its rate"
        return ok(text)
    ratio = min((run.world, 1 / run.world, run.world**2, run.world**-2), key=lambda ratio: abs(size / ratio - 1))
    if abs(size / ratio - 1) > 0.15:
        return unknown(f"the gradient is {size:.3g} times as large as on 1 process")
    how = f"{ratio:g} times too large" if ratio > 1 else f"{1 / ratio:g} times too small"
    text = f"steps are {how}, compared with 1 process on the same local batch: the gradient is {size:.3g} of its mean"
    cure = "DDP has averaged already: divide neither loss nor gradient by the world size, and do not sum instead."
    return wrong(text, run.first("backward")["frames"], "S23", cure)


def _samples_per_step(run: AuditedRun) -> float | None:
    """The mean number of samples of one rank in one step; None if it is not known."""
    steps = run.lowest.of("step")
    calls = [call for call in run.lowest.training_calls() if call["samples"] and steps and call["at"] < steps[-1]["at"]]
    return sum(len(call["samples"]) for call in calls) / len(steps) if calls else None


def _rate_growth(run: AuditedRun, single: AuditedRun) -> float | None:
    """The largest ratio of a parameter group's highest learning rate to that of the run on a single process."""
    pairs = [
        (a, b)
        for number in {event["number"] for event in run.of("rates")[0]}
        for a, b in zip(_highest_rates(run.audits[0], number), _highest_rates(single.audits[0], number), strict=False)
    ]
    return max((a / b for a, b in pairs if b), default=None)


def _highest_rates(audit: Audit, number: int) -> list[float]:
    """The highest learning rate of each parameter group of optimizer `number`."""
    return next((event["highest"] for event in reversed(audit.of("rates")) if event["number"] == number), [])


def _gradient_scale(run: AuditedRun) -> float | None:
    """A step's gradient divided by the mean gradient over the samples of all ranks; None if unknown.

    It is the median of used_gradients times the mean, over ranks and steps, of what a rank multiplies its mean loss by.
    """
    by_optimizer = [used_gradients(optimizer, rows).values() for optimizer, rows in steps_by_optimizer(run)]
    factors = [factor for each in by_optimizer for used in each for factor in used if factor != "local"]
    if not factors or max(factors) > 1.05 * min(factors):
        return None
    weights = []
    for audit in run.audits.values():
        begin = -1
        for step in audit.of("step"):
            passes = audit.between(begin, step["at"], "backward")
            if any(event["reduction"] == "sum" and event["count"] is None for event in passes):
                return None
            if passes:
                weights.append(
                    sum(event["factor"] * (event["count"] if event["reduction"] == "sum" else 1) for event in passes)
                )
            begin = step["at"]
    return statistics.median(factors) * statistics.fmean(weights) if weights else None
