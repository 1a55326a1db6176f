"""Compare a tensor of the answer with the right one, in a driver or in a check."""

import math
from typing import Any

import torch
from torch import Tensor


def largest_gap(tensor: Any, right: Tensor) -> float:
    """The largest absolute difference; 0 between equal infinities, and of tensors without elements.

    Infinite if a difference is NaN, or if `tensor` is no tensor or has another shape than `right`.
    """
    if not torch.is_tensor(tensor) or tensor.shape != right.shape:
        return math.inf
    gaps = (tensor - right).detach().abs().masked_fill(tensor == right, 0)
    return gaps.nan_to_num(nan=math.inf, posinf=math.inf).max().item() if gaps.numel() else 0.0
