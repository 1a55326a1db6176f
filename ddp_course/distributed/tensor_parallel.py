"""Tensor parallelism: linear layers sharded over ranks, each of which computes a part of the product (Megatron-LM).

A column-parallel layer computes some of the outputs from all inputs; a row-parallel layer has some of the inputs and
computes a partial sum of every output, and the partial sums are added. A column-parallel layer followed by a
row-parallel layer needs one all-reduce in forward and one in backward.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

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


def _unchanged(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    return x.view_as(x)


def _summed(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def _all_tokens(own: Tensor, group: dist.ProcessGroup) -> Tensor:
    """(windows, tokens, width) of all ranks."""
    parts = [torch.empty_like(own, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, own.contiguous(), group=group)
    return torch.cat(parts, 1)


def _own_tokens(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    return x.chunk(dist.get_world_size(group), 1)[dist.get_rank(group)].contiguous()


def _summed_own_tokens(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    parts = [part.contiguous() for part in x.chunk(dist.get_world_size(group), 1)]
    dist.reduce_scatter(own := torch.empty_like(parts[0]), parts, group=group)
    return own


def _function(of_values: Callable, of_gradients: Callable) -> type[Function]:
    """A function of a tensor and a group of ranks, by what it does in forward and in backward."""

    class OverRanks(Function):
        @staticmethod
        def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
            ctx.group = group
            return of_values(x, group)

        @staticmethod
        def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
            return of_gradients(gradient, ctx.group), None

    return OverRanks


# Around a column- and a row-parallel layer, where every rank has all tokens; sequence parallel's of the same
Enter, Leave = _function(_unchanged, _summed), _function(_summed, _unchanged)
GatherTokens, ScatterTokens = _function(_all_tokens, _summed_own_tokens), _function(_summed_own_tokens, _all_tokens)
# Around a layer that every rank computes alike, of all tokens: each has the whole gradient already
JoinTokens, TakeTokens = _function(_all_tokens, _own_tokens), _function(_own_tokens, _all_tokens)


class Column(nn.Module):
    """Column-parallel: some of the outputs of `whole`, from all inputs. groups: fused layers, such as q, k and v."""

    def __init__(
        self, whole: nn.Linear, axis: Axis, groups: int | tuple[int, ...] = 1, enter: type[Function] | None = Enter
    ) -> None:
        super().__init__()
        by_axis, self.enter = {axis: Placement(0, groups)}, enter
        self.axis, self.placements = axis, {"weight": by_axis, "bias": by_axis}
        self.weight, self.bias = shard(by_axis, whole.weight), None
        if whole.bias is not None:
            self.bias = shard(by_axis, whole.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.enter.apply(x, self.axis.group) if self.enter else x, self.weight, self.bias)


class Row(nn.Module):
    """Row-parallel: all outputs of `whole`, summed over the ranks' inputs. The bias is replicated and added once."""

    def __init__(self, whole: nn.Linear, axis: Axis, leave: type[Function] = Leave) -> None:
        super().__init__()
        self.leave, self.axis, self.placements = leave, axis, {"weight": {axis: Placement(1)}}
        self.weight, self.bias = shard(self.placements["weight"], whole.weight), whole.bias

    def forward(self, x: Tensor) -> Tensor:
        y = self.leave.apply(F.linear(x, self.weight), self.axis.group)
        return y if self.bias is None else y + self.bias


class VocabularyEmbedding(nn.Module):
    """An embedding of which a rank has some rows. Returns those of the own tokens, as `ScatterTokens`."""

    def __init__(self, whole: nn.Embedding, axis: Axis) -> None:
        super().__init__()
        self.axis, self.placements = axis, {"weight": {axis: Placement(0)}}
        self.weight = shard(self.placements["weight"], whole.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        row, here = _own_index(tokens, len(self.weight), self.axis)
        return ScatterTokens.apply(F.embedding(row, self.weight) * here.unsqueeze(-1), self.axis.group)


def vocabulary_loss_sum(logits: Tensor, targets: Tensor, axis: Axis) -> Tensor:
    """The summed cross entropy of logits of which each rank has some columns; three numbers per token are sent.

    Negative targets are none, as in torch's.
    """
    largest = logits.detach().amax(-1)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=axis.group)
    column, here = _own_index(targets, logits.shape[-1], axis)
    of_target = logits.gather(-1, column.unsqueeze(-1)).squeeze(-1) * here
    total = (logits - largest.unsqueeze(-1)).exp().sum(-1)
    total, of_target = Leave.apply(torch.stack([total, of_target]), axis.group)
    return (total.log() + largest - of_target).masked_fill(targets < 0, 0).sum()


def _own_index(tokens: Tensor, count: int, axis: Axis) -> tuple[Tensor, Tensor]:
    """Where a rank that has `count` tokens of the vocabulary finds these, and which of them it has."""
    index = tokens - axis.rank * count
    here = (index >= 0) & (index < count)
    return index.where(here, 0), here


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
