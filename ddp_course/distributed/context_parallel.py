"""Ring attention between tokens of different ranks: keys and values are sent round a ring (Liu et al., 2023).

The softmax is updated chunk by chunk (online softmax, Milakov and Gimelshein, 2018): it keeps the largest score so far
and the sum of exponentials, and rescales both sums when a larger score arrives.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ddp_course.distributed.mesh import Axis


def zigzag(context: int, ranks: int) -> Tensor:
    """The positions of a window on each rank: (ranks, context / ranks) of int64.

    The window is cut into 2 * ranks chunks; rank r has chunk r from the front and chunk r from the end, so under a
    causal mask all ranks compute the same number of pairs. On one rank: all positions in order.
    """
    if ranks == 1:
        return torch.arange(context).view(1, -1)  # of any length, odd ones as well
    chunks = torch.arange(context).view(2 * ranks, -1)
    return torch.cat([chunks[:ranks], chunks.flip(0)[:ranks]], 1)


def ring_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    axis: Axis,
    drop: Callable[[Tensor, Tensor], Tensor] = lambda weights, key_positions: weights,
) -> Tensor:
    """Causal attention of this rank's queries to the keys and values of all ranks; returns a tensor like `query`.

    query, key, value: (batch, heads, tokens of this rank, size). There may be fewer key heads than query heads: then
    each serves a group of successive query heads.
    positions: those of all ranks, as from `zigzag`.
    drop: applies dropout to attention weights (batch, key heads, query heads per key head, queries, keys), given the
    positions of the keys. The softmax divides by the sum of the weights before dropout.
    Scores and sums are in float32, or in float64 if the queries are.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    with torch.autocast(query.device.type, enabled=False):
        group_size = query.shape[1] // key.shape[1]  # query heads per key head
        scaled_query = query.to(dtype).unflatten(1, (-1, group_size)) / query.shape[-1] ** 0.5
        largest, total, output = torch.full_like(scaled_query[..., :1], -torch.inf), 0, 0
        for step in range(axis.size):
            key_positions = positions[axis.neighbour(-step)]  # `key` and `value` are now that rank's
            is_later = key_positions > positions[axis.rank][:, None]
            scores = (scaled_query @ key.to(dtype).unsqueeze(2).transpose(-1, -2)).masked_fill(is_later, -torch.inf)
            # Finite, because in step 0 each token attends to itself.
            new_largest = torch.maximum(largest, scores.detach().amax(-1, keepdim=True))
            rescale, weights = torch.exp(largest - new_largest), torch.exp(scores - new_largest)
            output, total, largest = (
                output * rescale + drop(weights, key_positions) @ value.to(dtype).unsqueeze(2),
                total * rescale + weights.sum(-1, keepdim=True),
                new_largest,
            )
            if step < axis.size - 1:
                key, value = Shift.apply(torch.stack([key, value]), axis)
        return (output / total).flatten(1, 2).to(query.dtype)


class Shift(torch.autograd.Function):
    """Send to the next rank of the ring; backward sends the gradients to the previous rank."""

    @staticmethod
    def forward(ctx, x: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return axis.exchange(x, axis.neighbour(1), axis.neighbour(-1))

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.axis.exchange(gradient, ctx.axis.neighbour(-1), ctx.axis.neighbour(1)), None
