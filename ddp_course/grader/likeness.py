"""What a wrong result looks like: known mistakes, each with what it gives, in which words, and where to look then.

Where to look follows from what was found. A text that follows from the check alone sends whoever made another mistake
to a line that is right.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Mistake:
    """`gives` is the result of it, `words` what is put behind that ("the mean of the ranks' means")."""

    words: str
    gives: float | Tensor
    look: str


def recognised(
    found: float | Tensor, mistakes: Iterable[Mistake], otherwise: str = "", rel_tol: float = 1e-6
) -> tuple[str, str]:
    """(", words", look) of the first of `mistakes` that gives `found`; ("", otherwise) if none does."""
    for one in mistakes:
        if _same(found, one.gives, rel_tol):
            return f", {one.words}", one.look
    return "", otherwise


def like_neighbours(order: list, other: list) -> bool:
    """Whether most samples that follow one another do so in the other order too, there or the other way round."""
    near = {frozenset(pair) for pair in zip(other, other[1:] + other[:1], strict=True)}
    kept = sum(frozenset(pair) in near for pair in zip(order, order[1:], strict=False))
    return kept > len(order) / 2


def _same(found, gives, rel_tol):
    if not torch.is_tensor(gives):
        return math.isclose(found, gives, rel_tol=rel_tol)
    alike = torch.is_tensor(found) and found.shape == gives.shape
    return alike and torch.allclose(found.double(), gives.double(), rtol=rel_tol, atol=0)
