"""Tensor parallelism by hand: linear layers cut by columns or rows, attention by heads, with the two all-reduces.

Notebook 22 explains them. Each parameter that is cut knows how (`cut`), so that it can be gathered again.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ddp_course.ladder.axes import Axis
from ddp_course.ladder.comparison import Weights
from ddp_course.ladder.setting import Fault
from ddp_course.models.minigpt import Attention, MiniGPT


class Enter(torch.autograd.Function):
    """Forward: x, the same on every rank. Backward: the sum of the ranks' gradients."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Leave(torch.autograd.Function):
    """Forward: the sum of the ranks' parts. Backward: the gradient, the same on every rank."""

    @staticmethod
    def forward(ctx, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = part.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return gradient, None


def cut(whole: Tensor, axis: Axis, dim: int, groups: int = 1) -> nn.Parameter:
    """This rank's part along `dim`; each of `groups` fused layers is cut by itself."""
    parts = [group.chunk(axis.size, dim)[axis.rank] for group in whole.detach().chunk(groups, dim)]
    parameter = nn.Parameter(torch.cat(parts, dim).clone())
    parameter.cut = dim, groups
    return parameter


class Column(nn.Module):
    """Column-parallel: some of the outputs, from all inputs."""

    def __init__(self, whole: nn.Linear, axis: Axis, groups: int = 1, fault: Fault = "none") -> None:
        super().__init__()
        self.axis, self.fault = axis, fault
        self.weight, self.bias = (cut(tensor, axis, 0, groups) for tensor in (whole.weight, whole.bias))

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.fault == "no_backward_sum" else Enter.apply(x, self.axis.group)
        return F.linear(x, self.weight, self.bias)


class Row(nn.Module):
    """Row-parallel: all outputs, each the sum over the ranks; the bias is added once, after the sum."""

    def __init__(self, whole: nn.Linear, axis: Axis, fault: Fault = "none") -> None:
        super().__init__()
        self.axis, self.fault = axis, fault
        self.weight, self.bias = cut(whole.weight, axis, 1), whole.bias

    def forward(self, x: Tensor) -> Tensor:
        if self.fault == "bias_in_each_part":
            return Leave.apply(F.linear(x, self.weight, self.bias), self.axis.group)
        return Leave.apply(F.linear(x, self.weight), self.axis.group) + self.bias


class HeadsOfRank(nn.Module):
    """Attention with some of the heads: their queries, keys and values, and the columns that read them."""

    def __init__(self, whole: Attention, axis: Axis, fault: Fault = "none") -> None:
        super().__init__()
        self.heads = whole.heads // axis.size
        self.query_key_value = Column(whole.query_key_value, axis, 1 if fault == "fused_as_one" else 3, fault)
        self.projection = Row(whole.projection, axis, fault)

    def forward(self, x: Tensor, past: None = None) -> Tensor:
        fused = self.query_key_value(x).unflatten(-1, (3, self.heads, -1))
        query, key, value = (part.transpose(1, 2) for part in fused.unbind(2))
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.projection(y.transpose(1, 2).flatten(2))


def cut_by_hand(model: MiniGPT, axis: Axis, fault: Fault = "none") -> MiniGPT:
    """The model with attention and MLP of every block cut over the ranks of the axis; the rest stays whole."""
    for block in model.blocks:
        block.attention = HeadsOfRank(block.attention, axis, fault)
        block.expand, block.projection = Column(block.expand, axis, 1, fault), Row(block.projection, axis, fault)
    return model


def gathered(model: nn.Module, axis: Axis) -> Weights:
    """The whole weights, in float64, from the parts of all ranks (collective)."""
    return {name: _whole(parameter, axis) for name, parameter in model.named_parameters()}


def _whole(parameter: nn.Parameter, axis: Axis) -> Tensor:
    own = parameter.detach().to(torch.float64, copy=True)
    if not hasattr(parameter, "cut"):
        return own
    dim, groups = parameter.cut
    parts = [torch.empty_like(own) for _ in range(axis.size)]
    dist.all_gather(parts, own, group=axis.group)
    by_group = zip(*(part.chunk(groups, dim) for part in parts), strict=True)
    return torch.cat([torch.cat(group, dim) for group in by_group], dim)


def total_norm(model: nn.Module, axis: Axis) -> Tensor:
    """The norm of the whole model's gradient: squares of cut weights are added over the ranks, the others are not."""
    squares = torch.zeros(2, dtype=torch.float64)  # of whole weights, of cut ones
    for parameter in model.parameters():
        squares[int(hasattr(parameter, "cut"))] += parameter.grad.square().sum()
    dist.all_reduce(squares[1], group=axis.group)
    return squares.sum().sqrt()
