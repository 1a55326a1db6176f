"""Tolerances: how far the weights of a rung may be from those of one process, with a derivation.

No tolerance is fitted to a measurement. Each follows from the roundoff of a dtype, the sizes of the setting and the
optimizer. Where equality is claimed, a mistake (no all-reduce, a wrong factor, a wrong share) leads to a gap of at
least 1,000 tolerances, which the tests show by injecting it.
"""

import torch

from ddp_course.ladder.comparison import Tolerance


def roundoff(dtype: torch.dtype) -> float:
    """The largest relative error of rounding a number to `dtype`."""
    return torch.finfo(dtype).eps / 2


def share_of_distance(share: float, because: str) -> Tolerance:
    """`share` times the distance that the weights travelled, for approximate gradients."""
    return Tolerance(lambda setting, comparison: share * comparison.distance(), because)


# For sums in another order, in float64, with SGD.
REORDERED = Tolerance(
    lambda setting, comparison: 10 * roundoff(torch.float64) * setting.tokens * setting.steps,
    "a gradient is a sum over the tokens of a step; in another order it changes by at most one roundoff of float64 per "
    "term, in every step; learning rate 0.1 and momentum 0.9 pass on 0.1 / (1 - 0.9) = 1 times that in the end; a "
    "factor of 10 is for steps that start from weights which already differ",
)
# The same with AdamW and learning rate 1e-3.
REORDERED_WITH_ADAMW = Tolerance(
    lambda setting, comparison: roundoff(torch.float64) * setting.tokens * setting.steps * 1e-3 / 1e-8,
    "as for SGD, but AdamW divides by a gradient's own size plus 1e-8: where the true gradient is zero, rounding is "
    "magnified by learning rate / 1e-8 in every step",
)
