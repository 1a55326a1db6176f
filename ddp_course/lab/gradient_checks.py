"""What questions ask of an answer that returns, on every rank, a loss and the gradients of it: (loss, gradients, _)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ddp_course.lab.answer_record import Case, cases
from ddp_course.lab.verdict import Wrong


def assert_shaped_like(case: Case, rank: int, gradients: Sequence[Tensor], right: Sequence[Tensor], what: str) -> None:
    """Raise Wrong unless there is one gradient for each in `right`, of its shape.

    what: that a rank may have none of, and then still has to return gradients: "pairs".
    """
    shapes = [tuple(one.shape) if torch.is_tensor(one) else one for one in gradients]
    if shapes != [tuple(one.shape) for one in right]:
        raise Wrong(
            f"{case.where}rank {rank} returned gradients of shapes {str(shapes)[:100]}, not one for each "
            f"of the {len(right)} parameters, shaped like it",
            f"the list that is returned, also on a rank that has no {what}",
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
