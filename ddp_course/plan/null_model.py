"""The formulas' MFU beside a trivial predictor: one constant for all runs, chosen when their MFU is known."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ddp_course.plan.published import Published


@dataclass(frozen=True)
class Errors:
    """Relative ones, of predictions against what was measured. correlation: None of a constant."""

    mean: float
    largest: float
    correlation: float | None = None


def errors(predicted: Sequence[float], measured: Sequence[float]) -> Errors:
    off = [abs(guess / real - 1) for guess, real in zip(predicted, measured, strict=True)]
    varies = len(set(predicted)) > 1
    return Errors(statistics.mean(off), max(off), statistics.correlation(predicted, measured) if varies else None)


def best_constant(measured: Sequence[float]) -> float:
    """With the smallest mean relative error: a weighted median, so it is a measured number itself."""
    return min(measured, key=lambda constant: errors([constant] * len(measured), measured).mean)


def of_formulas(runs: Sequence[Published]) -> Errors:
    return errors([run.plan().step.mfu for run in runs], [run.mfu for run in runs])


def of_constant(runs: Sequence[Published], constant: float | None = None) -> Errors:
    """The errors of one constant MFU; of the best constant by default."""
    measured = [run.mfu for run in runs]
    return errors([constant or best_constant(measured)] * len(runs), measured)
