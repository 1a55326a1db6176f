"""Weights in bfloat16 and linear layers in FP8, emulated: float32 tensors whose values are those of the format.

A product of FP8 numbers is added up in float32, as GPUs do. Notebook 29 trains with both.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FLOAT8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FLOAT8).max  # 448


def round_to_nearest(weight: Tensor) -> Tensor:
    """The nearest bfloat16: a step of less than half the distance to the next one is lost."""
    return weight.bfloat16().float()


def round_stochastically(weight: Tensor, generator: torch.Generator) -> Tensor:
    """The bfloat16 above or below, with odds by the distance, so that the mean is the weight.

    Replicas stay equal only if all ranks draw the same numbers: give each rank a generator with the same seed.
    """
    noise = torch.randint(2**16, weight.shape, dtype=torch.int32, generator=generator)
    return ((weight.view(torch.int32) + noise) & ~0xFFFF).view(torch.float32)


def in_float8(values: Tensor, block: int | None = None, scaled: bool = True) -> Tensor:
    """`values` rounded to FP8 (e4m3). scaled: times a scale, so that the largest becomes 448, and divided by it again.

    block: so many neighbours of the last dimension, which it divides, share a scale; None: the whole tensor does.
    """
    if not scaled:
        return values.clamp(-LARGEST, LARGEST).to(FLOAT8).to(values.dtype)
    blocks = values.reshape(-1, block or values.numel())
    largest = blocks.abs().amax(1, keepdim=True)
    scale = torch.where(largest > 0, LARGEST / largest, 1.0)
    return ((blocks * scale).clamp(-LARGEST, LARGEST).to(FLOAT8).to(values.dtype) / scale).view(values.shape)


class _Product(torch.autograd.Function):
    """inputs @ weight.T; this product and backward's two take FP8 numbers. Blocks lie along the summed dimension."""

    @staticmethod
    def forward(ctx, inputs: Tensor, weight: Tensor, block: int | None, scaled: bool) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.format = block, scaled
        return F.linear(in_float8(inputs, block, scaled), in_float8(weight, block, scaled))

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        rows, gradient_rows = inputs.flatten(0, -2), gradient.flatten(0, -2)
        inputs_gradient = in_float8(gradient, *ctx.format) @ in_float8(weight.T.contiguous(), *ctx.format).T
        float8_gradient = in_float8(gradient_rows.T.contiguous(), *ctx.format)
        weight_gradient = float8_gradient @ in_float8(rows.T.contiguous(), *ctx.format).T
        return inputs_gradient, weight_gradient, None, None


class Float8Linear(nn.Module):
    """A linear layer with the parameters of `linear`, which computes in FP8."""

    def __init__(self, linear: nn.Linear, block: int | None = None, scaled: bool = True) -> None:
        super().__init__()
        self.weight, self.bias, self._format = linear.weight, linear.bias, (block, scaled)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = _Product.apply(inputs, self.weight, *self._format)
        return outputs if self.bias is None else outputs + self.bias


def replace_linears(model: nn.Module, block: int | None = None, scaled: bool = True) -> nn.Module:
    """Put a Float8Linear in the place of each linear layer. Parameters stay the same objects, tied ones too."""
    for name, child in model.named_children():
        if isinstance(child, nn.Linear):
            setattr(model, name, Float8Linear(child, block, scaled))
        else:
            replace_linears(child, block, scaled)
    return model
