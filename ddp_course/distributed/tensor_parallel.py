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
    """The sharding of a tensor over ranks, along `dim`. If several layers are fused in it, each is divided by itself.

    groups: the number of the fused layers, of equal size, or their sizes.
    """

    dim: int
    groups: int | tuple[int, ...] = 1

    def shard(self, whole: Tensor, rank: int, ranks: int) -> Tensor:
        """The shard of `rank`, one of `ranks`, of a whole tensor."""
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


def _identity(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    return x.view_as(x)


def _all_reduce(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def _all_gather_tokens(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Concatenate (windows, tokens, width) of all ranks along the tokens."""
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, 1)


def _take_own_tokens(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """This rank's share of the tokens. Sends nothing."""
    return x.chunk(dist.get_world_size(group), 1)[dist.get_rank(group)].contiguous()


def _reduce_scatter_tokens(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum over the ranks, of this rank's share of the tokens."""
    parts = [part.contiguous() for part in x.chunk(dist.get_world_size(group), 1)]
    total = torch.empty_like(parts[0])
    dist.reduce_scatter(total, parts, group=group)
    return total


def _function(on_values: Callable, on_gradients: Callable) -> type[Function]:
    """An autograd function of a tensor and a group: `on_values` in forward, `on_gradients` in backward."""

    class OverRanks(Function):
        @staticmethod
        def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
            ctx.group = group
            return on_values(x, group)

        @staticmethod
        def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
            return on_gradients(gradient, ctx.group), None

    return OverRanks


# Before a column-parallel and after a row-parallel layer: outside of the two, every rank has all tokens.
Enter = _function(_identity, _all_reduce)
Leave = _function(_all_reduce, _identity)
# The same with sequence parallelism: outside of the two layers, each rank has a share of the tokens.
GatherTokens = _function(_all_gather_tokens, _reduce_scatter_tokens)
ScatterTokens = _function(_reduce_scatter_tokens, _all_gather_tokens)
# Before and after a layer that every rank computes in full: the gradient of all tokens is then equal on all ranks.
JoinTokens = _function(_all_gather_tokens, _take_own_tokens)
TakeTokens = _function(_take_own_tokens, _all_gather_tokens)


class Column(nn.Module):
    """Column-parallel: some of the outputs of `whole`, from all inputs.

    groups: the layers fused in `whole`, such as q, k and v (see Placement). enter: applied to the inputs; None if they
    have passed such a function already.
    """

    def __init__(
        self, whole: nn.Linear, axis: Axis, groups: int | tuple[int, ...] = 1, enter: type[Function] | None = Enter
    ) -> None:
        super().__init__()
        self.axis, self.enter = axis, enter
        placements = {axis: Placement(0, groups)}
        self.placements = {"weight": placements, "bias": placements}
        self.weight = shard(placements, whole.weight)
        self.bias = None if whole.bias is None else shard(placements, whole.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.enter.apply(x, self.axis.group) if self.enter else x, self.weight, self.bias)


class Row(nn.Module):
    """Row-parallel: all outputs of `whole`, from the partial sums of all ranks. The replicated bias is added once."""

    def __init__(self, whole: nn.Linear, axis: Axis, leave: type[Function] = Leave) -> None:
        super().__init__()
        self.axis, self.leave = axis, leave
        self.placements = {"weight": {axis: Placement(1)}}
        self.weight = shard(self.placements["weight"], whole.weight)
        self.bias = whole.bias

    def forward(self, x: Tensor) -> Tensor:
        y = self.leave.apply(F.linear(x, self.weight), self.axis.group)
        return y if self.bias is None else y + self.bias


class VocabularyEmbedding(nn.Module):
    """An embedding of which each rank has some rows.

    Takes all tokens, (windows, tokens); returns the vectors of this rank's share of the tokens, as `ScatterTokens`.
    """

    def __init__(self, whole: nn.Embedding, axis: Axis) -> None:
        super().__init__()
        self.axis = axis
        self.placements = {"weight": {axis: Placement(0)}}
        self.weight = shard(self.placements["weight"], whole.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        row, is_local = _local_index(tokens, len(self.weight), self.axis)
        return ScatterTokens.apply(F.embedding(row, self.weight) * is_local.unsqueeze(-1), self.axis.group)


def vocabulary_loss_sum(logits: Tensor, targets: Tensor, axis: Axis) -> Tensor:
    """The summed cross entropy, on all ranks, of logits of which each rank has some columns (collective).

    logits: (tokens, columns of this rank). targets: (tokens,); negative ones are ignored, as torch ignores -100.
    Three numbers per token are sent.
    """
    largest = logits.detach().amax(-1)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=axis.group)
    column, is_local = _local_index(targets, logits.shape[-1], axis)
    target_logit = logits.gather(-1, column.unsqueeze(-1)).squeeze(-1) * is_local
    total = (logits - largest.unsqueeze(-1)).exp().sum(-1)
    total, target_logit = Leave.apply(torch.stack([total, target_logit]), axis.group)
    return (total.log() + largest - target_logit).masked_fill(targets < 0, 0).sum()


def _local_index(tokens: Tensor, count: int, axis: Axis) -> tuple[Tensor, Tensor]:
    """The index of each token among the `count` tokens of the vocabulary that this rank has, and whether it has it.

    The index of a token that another rank has is 0.
    """
    index = tokens - axis.rank * count
    is_local = (index >= 0) & (index < count)
    return index.where(is_local, 0), is_local


Placements = dict[Axis, Placement]  # how a tensor is sharded: first over the first axis, each shard over the next one


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
