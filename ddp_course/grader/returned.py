"""What an answer returned, read as leniently as a reader would: a tensor of one element counts as a number."""

from typing import Any

import torch


def number(value: Any) -> Any:
    """`value`, as a number if it is a tensor of one element."""
    return value.item() if torch.is_tensor(value) and value.numel() == 1 else value


def numbers(values: Any) -> list[int | float] | None:
    """The numbers in a list or tensor; None if it is something else, or holds something else."""
    if not isinstance(values, (list, torch.Tensor)):
        return None
    plain = [number(one) for one in (values.flatten() if torch.is_tensor(values) else values)]
    return plain if all(isinstance(one, int | float) for one in plain) else None
