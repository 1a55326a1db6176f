"""Tensor parallelism: linear layers sharded over ranks, each of which computes a part of the product (Megatron-LM).

A column-parallel layer computes some of the outputs from all inputs; a row-parallel layer has some of the inputs and
computes a partial sum of every output, and the partial sums are added. A column-parallel layer followed by a
row-parallel layer needs one all-reduce in forward and one in backward.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ddp_course.distributed.mesh import Axis


@dataclass(frozen=True)
class Placement:
    """How a tensor is sharded over ranks: along `dim`, each of the layers fused in it by itself.

    groups: the number of these layers, of equal size, or their sizes.
    """

    dim: int
    groups: int | tuple[int, ...] = 1

    def shard(self, whole: Tensor, rank: int, ranks: int) -> Tensor:
        return torch.cat([layer.chunk(ranks, self.dim)[rank] for layer in self._fused(whole, 1)], self.dim)

    def join(self, parts: list[Tensor]) -> Tensor:
        """The whole tensor from the shards of all ranks."""
        fused = zip(*(self._fused(part, len(parts)) for part in parts), strict=True)
        return torch.cat([part for layer_parts in fused for part in layer_parts], self.dim)

    def _fused(self, tensor: Tensor, ranks: int) -> tuple[Tensor, ...]:
        """The layers fused in a tensor, or in one of the shards of `ranks` ranks."""
        if isinstance(self.groups, int):
            return tensor.chunk(self.groups, self.dim)
        return tensor.split([size // ranks for size in self.groups], self.dim)


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
    """Column-parallel: some of the outputs of `whole`, from all inputs. groups: fused layers, such as q, k and v."""

    def __init__(self, whole: nn.Linear, axis: Axis, groups: int | tuple[int, ...] = 1) -> None:
        super().__init__()
        by_axis = {axis: Placement(0, groups)}
        self.axis, self.placements = axis, {"weight": by_axis, "bias": by_axis}
        self.weight, self.bias = shard(by_axis, whole.weight), None
        if whole.bias is not None:
            self.bias = shard(by_axis, whole.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(Enter.apply(x, self.axis.group), self.weight, self.bias)


class Row(nn.Module):
    """Row-parallel: all outputs of `whole`, summed over the ranks' inputs. The bias is replicated and added once."""

    def __init__(self, whole: nn.Linear, axis: Axis) -> None:
        super().__init__()
        self.axis, self.placements = axis, {"weight": {axis: Placement(1)}}
        self.weight, self.bias = shard(self.placements["weight"], whole.weight), whole.bias

    def forward(self, x: Tensor) -> Tensor:
        y = Leave.apply(F.linear(x, self.weight), self.axis.group)
        return y if self.bias is None else y + self.bias


Placements = dict[Axis, Placement]  # how a tensor is sharded, axis after axis


def shard(placements: Placements, whole: Tensor) -> nn.Parameter:
    """This rank's part of a whole tensor, as a parameter."""
    return nn.Parameter(own_part(placements, whole.detach()))


def own_part(placements: Placements, whole: Tensor) -> Tensor:
    """This rank's part of a whole tensor."""
    for axis, placement in placements.items():
        whole = placement.shard(whole, axis.rank, axis.size)
    return whole


def all_gather(placements: Placements, part: Tensor) -> Tensor:
    """The whole tensor from the parts of all ranks (collective)."""
    for axis, placement in reversed(placements.items()):
        parts = [torch.empty_like(part) for _ in range(axis.size)]
        dist.all_gather(parts, part.contiguous(), group=axis.group)
        part = placement.join(parts)
    return part


def placements_of(module: nn.Module) -> dict[str, Placements]:
    """{name: placements} of the sharded parameters in `module`. All others are replicated."""
    return {
        f"{name}.{parameter}".lstrip("."): placements
        for name, layer in module.named_modules()
        for parameter, placements in getattr(layer, "placements", {}).items()
    }
