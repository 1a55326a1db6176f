"""Tensors of a driver or a check: made from a seed, compared with the right ones, and hashed."""

import hashlib
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


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


def whole(tensor: Tensor) -> Tensor:
    """The tensor, detached; the whole of a sharded one, which is a collective."""
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach()


def model_gaps(model: nn.Module, right: nn.Module) -> dict[str, float]:
    """{name of a parameter or buffer of `model`: its largest gap from that of `right`}; see `whole`."""
    tensors, right_tensors = (dict([*module.named_parameters(), *module.named_buffers()]) for module in (model, right))
    return {name: largest_gap(whole(tensor), right_tensors[name]) for name, tensor in tensors.items()}


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """A hash of the bits of these tensors, in their order; shapes and dtypes do not enter it."""
    hashed = hashlib.sha256()
    for tensor in tensors:
        hashed.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()[:16]
