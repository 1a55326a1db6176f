"""MiniGPT sharded by hand over the ranks of an axis: linear layers by columns or rows, attention by heads.

Notebook 22 explains it. The layers are those of `distributed.tensor_parallel`, or wrong ones for the mistakes.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ddp_course.distributed.mesh import Axis
from ddp_course.distributed.tensor_parallel import Column, Leave, Row, all_gather, placements_of
from ddp_course.ladder.comparison import Weights, weights
from ddp_course.models.minigpt import Attention, MiniGPT


class ColumnUnsummed(Column):
    """The mistake: backward does not sum the input's gradient over the ranks."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class RowBiased(Row):
    """The mistake: the bias is added on every rank, before the sum."""

    def forward(self, x: Tensor) -> Tensor:
        return Leave.apply(F.linear(x, self.weight, self.bias), self.axis.group)


def parallel_layers(fault: str) -> tuple[type[Column], type[Row]]:
    """The classes of the column- and the row-parallel layer; one of them is wrong if the fault is about it."""
    return (
        ColumnUnsummed if fault == "no_backward_sum" else Column,
        RowBiased if fault == "bias_in_each_part" else Row,
    )


class HeadsOfRank(nn.Module):
    """Attention with this rank's heads: their rows of the fused QKV layer, and their columns of the projection."""

    def __init__(self, whole: Attention, axis: Axis, fault: str = "none") -> None:
        super().__init__()
        self.heads = whole.heads // axis.size
        column, row = parallel_layers(fault)
        self.query_key_value = column(whole.query_key_value, axis, 1 if fault == "fused_as_one" else 3)
        self.projection = row(whole.projection, axis)

    def forward(self, x: Tensor, past: None = None) -> Tensor:
        fused = self.query_key_value(x).unflatten(-1, (3, self.heads, -1))
        query, key, value = (part.transpose(1, 2) for part in fused.unbind(2))
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.projection(y.transpose(1, 2).flatten(2))


def shard_by_hand(model: MiniGPT, axis: Axis, fault: str = "none") -> MiniGPT:
    """Shard attention and MLP of every block over the axis, in place; the rest is replicated. Returns the model."""
    column, row = parallel_layers(fault)
    for block in model.blocks:
        block.attention = HeadsOfRank(block.attention, axis, fault)
        block.expand, block.projection = column(block.expand, axis), row(block.projection, axis)
    return model


def gathered_weights(model: nn.Module) -> Weights:
    """The unsharded weights in float64 (collective)."""
    whole = weights(model)
    for name, placements in placements_of(model).items():
        whole[name] = all_gather(placements, whole[name])
    return whole


def squared_norm(model: nn.Module, axis: Axis | None, skip: str = "") -> Tensor:
    """The squared norm of the unsharded gradient: squares of sharded weights are summed over the axis (collective).

    skip: the name of a parameter to leave out.
    """
    placements = placements_of(model)
    squares = torch.zeros(2, dtype=torch.float64)  # of replicated weights, of sharded weights
    for name, parameter in model.named_parameters():
        if name != skip:
            squares[int(name in placements)] += parameter.grad.square().sum()
    if axis:
        dist.all_reduce(squares[1], group=axis.group)
    return squares.sum()
