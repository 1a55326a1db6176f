"""Attention between tokens that lie on different ranks: keys and values go round in a ring (Liu et al., 2023).

The softmax over parts that come one after the other is kept up to date (Milakov and Gimelshein, 2018): the largest
score so far and the sum of exponentials; when a larger score comes, what is there is scaled down.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_course.distributed.mesh import Axis


def zigzag(context: int, ranks: int) -> Tensor:
    """Which positions of a window each rank has: (ranks, context / ranks) of int64.

    2 * ranks chunks; rank r has chunk r from the front and chunk r from the end, so under a causal mask all ranks have
    the same number of pairs to compute. On one rank: all positions in their order.
    """
    if ranks == 1:
        return torch.arange(context).view(1, -1)  # of any length, odd ones as well
    chunks = torch.arange(context).view(2 * ranks, -1)
    return torch.cat([chunks[:ranks], chunks.flip(0)[:ranks]], 1)


def ring_attention(query: Tensor, key: Tensor, value: Tensor, positions: Tensor, axis: Axis) -> Tensor:
    """Causal attention of own queries to the keys and values of all ranks. (batch, heads, own tokens, size) each.

    positions: as `zigzag` gives them. Scores and sums are in float32, or in float64 if the queries are.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    with torch.autocast(query.device.type, enabled=False):
        scaled = query.to(dtype) / query.shape[-1] ** 0.5
        top, total, y = torch.full_like(scaled[..., :1], -torch.inf), 0, 0
        for step in range(axis.size):
            theirs = positions[axis.neighbour(-step)]  # of the keys and values that are here now
            hidden = theirs > positions[axis.rank][:, None]
            scores = (scaled @ key.to(dtype).transpose(-1, -2)).masked_fill(hidden, -torch.inf)
            new_top = torch.maximum(top, scores.detach().amax(-1, keepdim=True))  # finite: each token sees itself first
            old, weights = torch.exp(top - new_top), torch.exp(scores - new_top)
            y, total, top = y * old + weights @ value.to(dtype), total * old + weights.sum(-1, keepdim=True), new_top
            if step < axis.size - 1:
                key, value = Shift.apply(torch.stack([key, value]), axis)
        return (y / total).to(query.dtype)


class Shift(torch.autograd.Function):
    """Pass on to the next rank of the ring; in backward the gradients go the same way home."""

    @staticmethod
    def forward(ctx, x: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return _shifted(x, axis, 1)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return _shifted(gradient, ctx.axis, -1), None


def _shifted(x: Tensor, axis: Axis, step: int) -> Tensor:
    x, received = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    there, back = axis.neighbour(step), axis.neighbour(-step)
    for work in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, x, group=axis.group, group_peer=there),
            dist.P2POp(dist.irecv, received, group=axis.group, group_peer=back),
        ]
    ):
        work.wait()
    return received
