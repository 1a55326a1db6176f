"""Tensors of a driver or a check: made from a seed, compared with the right ones, and hashed."""

import hashlib
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def random_tensor(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Numbers of a standard normal distribution, the same in every process."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def largest_gap(tensor: Any, right: Tensor) -> float:
    """The largest absolute difference; 0 between equal infinities, and of tensors without elements.

    Infinite if a difference is NaN, or if `tensor` is no tensor or has another shape than `right`.
    """
    if not torch.is_tensor(tensor) or tensor.shape != right.shape:
        return math.inf
    gaps = (tensor - right).detach().abs().masked_fill(tensor == right, 0)
    return gaps.nan_to_num(nan=math.inf, posinf=math.inf).max().item() if gaps.numel() else 0.0


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """A hash of the bits of these tensors, in their order; shapes and dtypes do not enter it."""
    hashed = hashlib.sha256()
    for tensor in tensors:
        hashed.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()[:16]
