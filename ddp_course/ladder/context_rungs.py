"""Rungs about context parallelism: each rank has a part of every window's tokens. Notebook 24."""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ddp_course.distributed.context_parallel import ring_attention, zigzag
from ddp_course.distributed.mesh import Axis
from ddp_course.distributed.process_group import World
from ddp_course.ladder.axes import CUT, add_gradients, all_ranks, divided, updates, with_tokens
from ddp_course.ladder.comparison import Comparison, Rung, alone, batches, mistake, weights
from ddp_course.ladder.setting import Batch, Setting
from ddp_course.ladder.subjects import build_minigpt
from ddp_course.ladder.tolerance import reordered
from ddp_course.models.minigpt import Attention

HEADS_DIM, TOKENS_DIM = -3, -2  # of queries, keys and values
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class AttentionOf(nn.Module):
    """MiniGPT's attention, where `attend` does what happens between tokens."""

    def __init__(self, whole: Attention, attend: Attend) -> None:
        super().__init__()
        self.query_key_value, self.projection = whole.query_key_value, whole.projection
        self.heads, self.attend = whole.heads, attend

    def forward(self, x: Tensor, past: None = None) -> Tensor:
        query, key, value = self.query_key_value(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.projection(self.attend(query, key, value).transpose(1, 2).flatten(2))


class Exchange(torch.autograd.Function):
    """Part i of a tensor along `cut` goes to rank i; what comes is joined along `join`. Backward goes back."""

    @staticmethod
    def forward(ctx, x: Tensor, cut: int, join: int, axis: Axis) -> Tensor:
        ctx.back = join, cut, axis
        return _exchanged(x, cut, join, axis)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return _exchanged(gradient, *ctx.back), None, None, None


def _exchanged(x: Tensor, cut: int, join: int, axis: Axis) -> Tensor:
    parts = torch.stack(x.chunk(axis.size, cut))
    got = torch.empty_like(parts)
    dist.all_to_all_single(got, parts, group=axis.group)
    return torch.cat(list(got), join)


def ulysses_attention(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, axis: Axis) -> Tensor:
    """From all heads of my tokens to my heads of all tokens, and back."""
    q, k, v = Exchange.apply(torch.stack([q, k, v]), HEADS_DIM, TOKENS_DIM, axis)
    return Exchange.apply(F.scaled_dot_product_attention(q, k, v, is_causal=True), TOKENS_DIM, HEADS_DIM, axis)


def blocks(tokens: int, ranks: int) -> Tensor:
    """The positions of each rank, (ranks, tokens / ranks): parts that follow each other."""
    return torch.arange(tokens).view(ranks, -1)


def own_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The mistake: over the own tokens only."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def cut_context(setting: Setting, world: World, way, cut) -> Comparison:
    """MiniGPT on the own tokens; only attention and positions know that there are others."""
    joint, axis, model = batches(setting), all_ranks(world), build_minigpt(setting)
    positions = cut(setting.context, axis.size)
    own = positions[0 if setting.fault == "same_share" else axis.rank]
    attend = own_attention if setting.fault == "own_tokens_only" else partial(way, positions=positions, axis=axis)
    for block in model.blocks:
        block.attention = AttentionOf(block.attention, attend)
    embedded = torch.arange(len(own)) if setting.fault == "positions_from_0" else own

    def gradients(batch: Batch) -> None:
        inputs, targets = (tokens[:, own] for tokens in batch)
        x = model.token_embedding(inputs) + model.position_embedding(embedded)
        for block in model.blocks:
            x = block(x)
        logits = model.output(model.final_norm(x)).flatten(0, 1)
        loss = F.cross_entropy(logits, targets.flatten(), reduction="sum")
        divided(setting, loss, batch, axis.size).backward()
        add_gradients(setting, model.parameters(), axis)

    several = updates(joint, model.parameters(), gradients, lambda: weights(model))
    return Comparison(several, alone(build_minigpt(setting), joint))


def ring(setting: Setting, world: World) -> Comparison:
    """Ring attention, windows cut into blocks."""
    return cut_context(setting, world, ring_attention, blocks)


def ring_in_zigzag(setting: Setting, world: World) -> Comparison:
    """Ring attention, with equal work for all ranks."""
    return cut_context(setting, world, ring_attention, zigzag)


def ulysses(setting: Setting, world: World) -> Comparison:
    """Tokens are exchanged for heads, and any attention kernel runs."""
    return cut_context(setting, world, ulysses_attention, blocks)


TOPIC = "context"
RING = Rung("ring attention: blocks", TOPIC, ring, reordered, CUT, fits=with_tokens)
RUNGS = [
    RING,
    Rung("ring attention: zigzag", TOPIC, ring_in_zigzag, reordered, CUT, fits=with_tokens),
    Rung("Ulysses", TOPIC, ulysses, reordered, CUT, fits=with_tokens),
    mistake(
        "positions from 0",
        "positions_from_0",
        RING,
        "each rank embeds its tokens as if its part were the beginning of the window",
    ),
    mistake(
        "own tokens only",
        "own_tokens_only",
        RING,
        "without the ring a token does not see the earlier ones that other ranks have",
    ),
]
