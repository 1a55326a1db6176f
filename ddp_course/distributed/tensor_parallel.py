"""Linear layers cut over ranks, each of which computes its part of every matrix product (Megatron-LM).

A column-parallel layer computes some of the outputs from all inputs; a row-parallel one has some of the inputs and
computes a part of every output, and the parts are added. One after the other they need one all-reduce in forward and
one in backward.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ddp_course.distributed.mesh import Axis


@dataclass(frozen=True)
class Cut:
    """How a tensor is divided over the ranks: along `dim`, and each of `groups` layers fused in it by itself."""

    dim: int
    groups: int = 1

    def part(self, whole: Tensor, rank: int, ranks: int) -> Tensor:
        fused = whole.chunk(self.groups, self.dim)
        return torch.cat([one.chunk(ranks, self.dim)[rank] for one in fused], self.dim)

    def joined(self, parts: list[Tensor]) -> Tensor:
        """What `part` has divided."""
        fused = zip(*(part.chunk(self.groups, self.dim) for part in parts), strict=True)
        return torch.cat([one for of_layer in fused for one in of_layer], self.dim)


class Enter(torch.autograd.Function):
    """Forward: x, the same on every rank. Backward: the sum of the ranks' gradients."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return _summed(gradient, ctx.group), None


class Leave(torch.autograd.Function):
    """Forward: the sum of the ranks' parts. Backward: the gradient, the same on every rank."""

    @staticmethod
    def forward(ctx, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        return _summed(part, group)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def _summed(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


class Column(nn.Module):
    """Some of the outputs of `whole`, from all inputs. groups: layers fused in it, as queries, keys and values are."""

    def __init__(self, whole: nn.Linear, axis: Axis, groups: int = 1) -> None:
        super().__init__()
        self.axis, self.cuts = axis, {"weight": Cut(0, groups), "bias": Cut(0, groups)}
        self.weight, self.bias = _own_part(self.cuts["weight"], whole.weight, axis), None
        if whole.bias is not None:
            self.bias = _own_part(self.cuts["bias"], whole.bias, axis)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(Enter.apply(x, self.axis.group), self.weight, self.bias)


class Row(nn.Module):
    """All outputs of `whole`, from some of the inputs, summed over the ranks. The bias is whole, and added once."""

    def __init__(self, whole: nn.Linear, axis: Axis) -> None:
        super().__init__()
        self.axis, self.cuts = axis, {"weight": Cut(1)}
        self.weight, self.bias = _own_part(self.cuts["weight"], whole.weight, axis), whole.bias

    def forward(self, x: Tensor) -> Tensor:
        y = Leave.apply(F.linear(x, self.weight), self.axis.group)
        return y if self.bias is None else y + self.bias


def _own_part(cut: Cut, whole: Tensor, axis: Axis) -> nn.Parameter:
    return nn.Parameter(cut.part(whole.detach(), axis.rank, axis.size))


def cuts_of(module: nn.Module) -> dict[str, Cut]:
    """Name -> cut of the parameters in `module` that are divided. All others are the same on every rank."""
    return {
        f"{name}.{parameter}".lstrip("."): cut
        for name, layer in module.named_modules()
        for parameter, cut in getattr(layer, "cuts", {}).items()
    }
