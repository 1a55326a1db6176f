"""Rungs about context parallelism: each rank has a part of every window's tokens. Notebook 24."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ddp_course.distributed.context_parallel import ring_attention, zigzag
from ddp_course.distributed.mesh import Axis
from ddp_course.distributed.process_group import World
from ddp_course.ladder.axes import (
    HEADS,
    SHARDED_SUMS,
    all_ranks,
    all_reduce_gradients,
    compare_sharded,
    divide_by_targets,
    up_to_multiple,
    with_tokens,
)
from ddp_course.ladder.comparison import Comparison, Rung, mistake, weights
from ddp_course.ladder.models import build_minigpt
from ddp_course.ladder.setting import Batch, Setting
from ddp_course.models.minigpt import Attention

HEADS_DIM, TOKENS_DIM = -3, -2  # of queries, keys and values
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class AttentionWith(nn.Module):
    """MiniGPT's attention layer, which calls `attend(query, key, value)`."""

    def __init__(self, attention: Attention, attend: Attend) -> None:
        super().__init__()
        self.query_key_value, self.projection = attention.query_key_value, attention.projection
        self.heads = (attention.heads, attention.kv_heads, attention.kv_heads)
        self.attend = attend

    def forward(self, x: Tensor, past: None = None) -> Tensor:
        fused = self.query_key_value(x).unflatten(-1, (sum(self.heads), -1)).transpose(1, 2)
        query, key, value = fused.split(self.heads, dim=1)
        return self.projection(self.attend(query, key, value).transpose(1, 2).flatten(2))


class Exchange(torch.autograd.Function):
    """All-to-all: chunk i along `split_dim` goes to rank i; received chunks are concatenated along `join_dim`."""

    @staticmethod
    def forward(ctx, x: Tensor, split_dim: int, join_dim: int, axis: Axis) -> Tensor:
        ctx.reverse = join_dim, split_dim, axis
        return _exchanged(x, split_dim, join_dim, axis)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return _exchanged(gradient, *ctx.reverse), None, None, None


def _exchanged(x: Tensor, split_dim: int, join_dim: int, axis: Axis) -> Tensor:
    chunks = torch.stack(x.chunk(axis.size, split_dim))
    received = torch.empty_like(chunks)
    dist.all_to_all_single(received, chunks, group=axis.group)
    return torch.cat(list(received), join_dim)


def ulysses_attention(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, axis: Axis) -> Tensor:
    """Ulysses: exchange all heads of this rank's tokens for all tokens of its heads, attend, and exchange back."""
    q, k, v = Exchange.apply(torch.stack([q, k, v]), HEADS_DIM, TOKENS_DIM, axis)
    return Exchange.apply(F.scaled_dot_product_attention(q, k, v, is_causal=True), TOKENS_DIM, HEADS_DIM, axis)


def blocks(tokens: int, ranks: int) -> Tensor:
    """The token positions of each rank, (ranks, tokens / ranks): consecutive blocks."""
    return torch.arange(tokens).view(ranks, -1)


def local_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The mistake: attention over this rank's tokens only."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def context_parallel(setting: Setting, world: World, attention, divide, **changes) -> Comparison:
    """MiniGPT on this rank's tokens of every window; only its attention communicates.

    attention: `ring_attention` or `ulysses_attention`. divide: returns the positions of each rank: `blocks`, or
    `zigzag`, which gives all ranks equal work.
    """
    axis = all_ranks(world)
    model = build_minigpt(setting, **changes)
    positions = divide(setting.context, axis.size)
    own_positions = positions[0 if setting.fault == "same_share" else axis.rank]
    embedded_positions = own_positions
    attend = partial(attention, positions=positions, axis=axis)
    if setting.fault == "positions_from_0":
        embedded_positions = torch.arange(len(own_positions))
    if setting.fault == "own_tokens_only":
        attend = local_attention
    for block in model.blocks:
        block.attention = AttentionWith(block.attention, attend)

    def gradients(batch: Batch) -> None:
        inputs, targets = (tokens[:, own_positions] for tokens in batch)
        x = model.token_embedding(inputs) + model.position_embedding(embedded_positions)
        for block in model.blocks:
            x = block(x)
        logits = model.output(model.final_norm(x)).flatten(0, 1)
        loss = F.cross_entropy(logits, targets.flatten(), reduction="sum")
        divide_by_targets(setting, loss, batch, axis.size).backward()
        all_reduce_gradients(setting, model.parameters(), axis)

    reference = build_minigpt(setting, **changes)
    return compare_sharded(setting, model, gradients, weights, reference)


def ring_of_shared_heads(setting: Setting, world: World) -> Comparison:
    """Grouped-query attention: two query heads share a key head and a value head, which are sent once."""
    attention = heads_in_turn if setting.fault == "heads_in_turn" else ring_attention
    return context_parallel(setting, world, attention, zigzag, kv_heads=setting.heads // 2)


def heads_in_turn(q: Tensor, k: Tensor, v: Tensor, **options) -> Tensor:
    """The mistake: `repeat` in place of `repeat_interleave`."""
    return ring_attention(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1), **options)


def with_shared_heads(setting: Setting, ranks: int) -> Setting:
    """Make tokens divide over the ranks. Four heads suffice for any number of ranks: a ring does not shard them."""
    setting = with_tokens(setting, ranks)
    return replace(setting, heads=HEADS, width=up_to_multiple(setting.width, HEADS))


def rung(name: str, attention, divide) -> Rung:
    run = partial(context_parallel, attention=attention, divide=divide)
    return Rung(name, TOPIC, run, SHARDED_SUMS, fits=with_tokens)


TOPIC = "context"
RING = rung("ring attention: blocks", ring_attention, blocks)
SHARED = Rung("ring: shared key heads", TOPIC, ring_of_shared_heads, SHARDED_SUMS, fits=with_shared_heads)
RUNGS = [
    RING,
    rung("ring attention: zigzag", ring_attention, zigzag),
    SHARED,
    rung("Ulysses", ulysses_attention, blocks),
    mistake("positions from 0", "positions_from_0", RING),
    mistake("key heads in turn", "heads_in_turn", SHARED, differs_from=1),
    mistake("own tokens only", "own_tokens_only", RING),
]
