"""Is an update on N ranks that of one process on N times the batch: the gradient's scale, and the learning rate?"""

import statistics

from ddp_doctor.audited import Audit, AuditedRun
from ddp_doctor.checks.finding import Finding
from ddp_doctor.checks.gradients import CLOSE, _fates
from ddp_doctor.checks.replicas import updates


def tokens(run: AuditedRun) -> Finding:
    """Each rank's loss is a mean over as many values as it happens to have, and DDP takes the mean of these means."""
    if not updates(run) or not run.data_parallel:
        return Finding("tokens", "unknown", "no gradients are averaged, as far as is seen")
    rows = list(zip(*run.of("backward").values(), strict=False))
    kinds = {event["loss"] for row in rows for event in row}
    if len(kinds) != 1 or kinds == {"other"}:
        return Finding("tokens", "unknown", "how the loss is made of its batch cannot be told")
    if kinds == {"mean"}:
        unlike = [row for row in rows if len({event["count"] for event in row}) > 1]
    else:
        unlike = [row for row in rows if len({event["factor"] for event in row}) > 1]
    if 2 * len(unlike) <= len(rows):
        return Finding("tokens", "ok", f"equal shares in {len(rows) - len(unlike)} of {len(rows)} backward passes")
    counts = [event["count"] if kinds == {"mean"} else round(1 / event["factor"]) for event in unlike[0]]
    text = (
        f"each rank's loss is the mean over its own values ({' and '.join(map(str, counts[:4]))} in one pass), and the "
        "mean of these means weighs the values of a short batch more"
    )
    cure = "Divide each rank's sum by the number of values on all ranks (all-reduced), times the world size under DDP."
    return Finding("tokens", "wrong", text, unlike[0][0]["frames"], "S5", cure)


def scale(run: AuditedRun) -> Finding:
    if not updates(run) or not run.data_parallel:
        return Finding("scale", "unknown", "no gradients are averaged, as far as is seen")
    if isinstance(run.single, str):
        return Finding("scale", "unknown", f"nothing to compare it with: {run.single}")
    growth = _samples(run) and _samples(run.single) and run.world * _samples(run) / _samples(run.single)
    rate = _highest(run, run.single)
    gradient = _gradient(run) and _gradient(run.single) and _gradient(run) / _gradient(run.single)
    if rate and growth and rate > 1.05 * max(growth, 1) and not (gradient and gradient < 0.95):
        text = (
            f"the learning rate grows {rate:.3g}-fold from 1 process to {run.world}, the global batch {growth:.3g}-fold"
        )
        cure = "Scale the rate once at most, and by no more than the global batch has grown."
        return Finding("scale", "wrong", text, run.first("optimizer")["frames"], "S23", cure)
    if gradient is None or not rate:
        return Finding("scale", "unknown", "the gradient's scale could not be told in one of the runs")
    off = gradient * rate if rate < 0.95 or gradient < 0.95 < 1.05 < rate else gradient
    if abs(off - 1) <= CLOSE:
        text = f"the gradient is scaled as on 1 process, the learning rate {rate:.3g} times its rate"
        return Finding("scale", "ok", text)
    ratio = min((run.world, 1 / run.world, run.world**2, run.world**-2), key=lambda ratio: abs(off / ratio - 1))
    if abs(off / ratio - 1) > 0.15:
        return Finding("scale", "unknown", f"the gradient is {off:.3g} times as large as on 1 process")
    how = f"{ratio:g} times too large" if ratio > 1 else f"{1 / ratio:g} times too small"
    text = f"updates are {how}, compared with 1 process on the same local batch: the gradient is {off:.3g} of its mean"
    cure = "DDP has averaged already: divide neither loss nor gradient by the world size, and do not sum instead."
    return Finding("scale", "wrong", text, run.first("backward")["frames"], "S23", cure)


def _samples(run: AuditedRun) -> float | None:
    """Samples of one rank in one update."""
    audit = next(iter(run.audits.values()))
    calls = [call for call in audit.training_calls() if call["rows"]]
    steps = audit.of("update")
    calls = [call for call in calls if steps and call["at"] < steps[-1]["at"]]
    return sum(len(call["rows"]) for call in calls) / len(steps) if calls else None


def _highest(run: AuditedRun, single: AuditedRun) -> float | None:
    """By how much the highest learning rates differ, at the most."""
    pairs = [
        (a, b)
        for number in {event["number"] for event in run.of("rates")[0]}
        for a, b in zip(_rates(run.audits[0], number), _rates(single.audits[0], number), strict=False)
    ]
    return max((a / b for a, b in pairs if b), default=None)


def _rates(audit: Audit, number: int) -> list[float]:
    return next((event["highest"] for event in reversed(audit.of("rates")) if event["number"] == number), [])


def _gradient(run: AuditedRun) -> float | None:
    """The gradient that an update uses, as a factor of the mean over the samples of all ranks."""
    by_parameter = [fates for optimizer, rows in updates(run) for fates in _fates(optimizer, rows).values()]
    factors = [fate for fates in by_parameter for fate in fates if fate != "local"]
    if not factors or max(factors) > 1.05 * min(factors):
        return None
    weights = []
    for audit in run.audits.values():
        begin = -1
        for step in audit.of("update"):
            passes = audit.between(begin, step["at"], "backward")
            if any(event["loss"] == "sum" and event["count"] is None for event in passes):
                return None
            if passes:
                values = (event["factor"] * (event["count"] if event["loss"] == "sum" else 1) for event in passes)
                weights.append(sum(values))
            begin = step["at"]
    return statistics.median(factors) * statistics.fmean(weights) if weights else None
