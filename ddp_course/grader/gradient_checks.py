"""Checks of an answer that returns a loss and its gradients on every rank."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ddp_course.grader.answer_record import Case, cases
from ddp_course.grader.verdict import Wrong
from ddp_course.grader.vocabulary import number


def assert_shaped_like(case: Case, rank: int, gradients: Sequence[Tensor], right: Sequence[Tensor], what: str) -> None:
    """Raise Wrong unless there is one gradient for each in `right`, of its shape.

    what: that a rank may have none of, and then still has to return gradients: "pairs".
    """
    shapes = [tuple(gradient.shape) if torch.is_tensor(gradient) else gradient for gradient in gradients]
    if shapes != [tuple(gradient.shape) for gradient in right]:
        raise Wrong(
            f"{case.where}rank {rank} returned gradients of shapes {str(shapes)[:100]}, not one for each "
            f"of the {len(right)} parameters, shaped like it",
            f"the list that is returned, also on a rank that has no {what}",
        )


def assert_loss_is(case: Case, right: float, close: float, likeness: Callable, advice: Callable) -> None:
    """Raise Wrong unless each rank returned the loss `right`, within `close` of its size (or 1e-12).

    likeness: of a wrong loss and the case, what it looks like, to be put behind it. advice: of it, `right` and the
    case, what to look at.
    """
    for rank, (loss, _, _) in enumerate(case.results):
        loss = number(loss)
        if not isinstance(loss, int | float):
            raise Wrong(f"{case.where}the loss on rank {rank} is {str(loss)[:60]!r}", "the value returned")
        if not math.isclose(loss, right, rel_tol=close, abs_tol=1e-12):
            raise Wrong(
                f"{case.where}the loss on rank {rank} is {loss:.9g}; one process has {right:.9g}{likeness(loss, case)}",
                advice(loss, right, case),
            )


def the_ranks_agree_to_the_last_bit(records):
    """Loss and gradients are bit-equal on all ranks: replicas that part by a rounding part for good."""
    for case in cases(records):
        for rank, (loss, gradients, _) in enumerate(case.results):
            first_loss, first, _ = case.results[0]
            if float(loss) != float(first_loss) or not all(map(torch.equal, gradients, first)):
                raise Wrong(
                    f"{case.where}rank {rank} holds another loss or gradient than rank 0, by a rounding",
                    "the order in which each rank adds up what it received: it has to be the same one everywhere",
                )
    return "the same on all ranks, to the last bit"
