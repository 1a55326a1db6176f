"""Compare the formulas' MFU with a null model: one constant for all runs, chosen when their MFU is known."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ddp_course.plan.published import Published


@dataclass(frozen=True)
class Errors:
    """Errors |prediction / measurement - 1|. correlation: of predictions and measurements; None for a constant."""

    mean: float
    largest: float
    correlation: float | None = None


def errors(predicted: Sequence[float], measured: Sequence[float]) -> Errors:
    """Compare the predictions with the measurements, run by run."""
    relative = [abs(prediction / value - 1) for prediction, value in zip(predicted, measured, strict=True)]
    correlation = statistics.correlation(predicted, measured) if len(set(predicted)) > 1 else None
    return Errors(statistics.mean(relative), max(relative), correlation)


def best_constant(measured: Sequence[float]) -> float:
    """The constant with the smallest mean relative error: a weighted median, so one of the measured numbers."""
    return min(measured, key=lambda constant: errors([constant] * len(measured), measured).mean)


def of_formulas(runs: Sequence[Published]) -> Errors:
    """The errors of the MFU that the formulas predict for the runs."""
    return errors([run.plan().step.mfu for run in runs], [run.mfu for run in runs])


def of_constant(runs: Sequence[Published]) -> Errors:
    """The errors of the best constant MFU."""
    measured = [run.mfu for run in runs]
    return errors([best_constant(measured)] * len(runs), measured)
