"""Rungs about the batch: its division into shares and micro-batches, and the divisor of its gradient."""

from dataclasses import replace

import torch

from ddp_course.data.windows import IGNORED
from ddp_course.distributed.process_group import World
from ddp_course.ladder.comparison import Comparison, Rung, adamw, batches, compare, ddp, train_reference, weights
from ddp_course.ladder.setting import Batch, Setting, global_batch
from ddp_course.ladder.subjects import build, build_part_frozen
from ddp_course.ladder.tolerance import DIVIDED, REORDERED, divided, reordered

CLIP = 0.05  # limit of the gradient's norm, far below the norms of these models, so that it always clips


def plain(setting: Setting, world: World) -> Comparison:
    """DDP alone. Each rank starts from different weights, until rank 0's are broadcast."""
    model = build(replace(setting, seed=(setting.seed + world.rank) % 2**64))
    return compare(setting, world, ddp(model))


def with_adamw(setting: Setting, world: World) -> Comparison:
    """DDP with AdamW."""
    return compare(setting, world, ddp(build(setting)), optimizer=adamw)


def accumulation(setting: Setting, world: World) -> Comparison:
    """Each rank computes its share in two micro-batches, the first under no_sync."""
    return compare(setting, world, ddp(build(setting)), accumulate=2)


def ragged(setting: Setting, world: World) -> Comparison:
    """Windows with 1 to `context` targets, accumulated: micro-batches and ranks have different numbers of targets."""
    global_batches = [shortened(setting, update) for update in range(setting.steps)]
    return compare(setting, world, ddp(build(setting)), global_batches=global_batches, accumulate=2)


def shortened(setting: Setting, update: int) -> Batch:
    """A global batch whose windows end early: the targets after the end are ignored."""
    inputs, targets = global_batch(setting, update)
    lengths = 1 + (torch.arange(setting.windows) * 5 + update) % setting.context
    beyond = torch.arange(setting.context) >= lengths[:, None]
    return inputs, targets.masked_fill(beyond, IGNORED)


def uneven(setting: Setting, world: World) -> Comparison:
    """Every third global batch has 3 windows: 2 + 1 on two ranks, and of four ranks one has none."""
    global_batches = [global_batch(setting, update, 3 if update % 3 == 2 else None) for update in range(setting.steps)]
    return compare(setting, world, ddp(build(setting)), global_batches=global_batches)


def clipping(setting: Setting, world: World) -> Comparison:
    """The gradient is clipped after the all-reduce, so every rank scales the global gradient by the same factor."""
    comparison = compare(setting, world, ddp(build(setting)), clip=CLIP)
    clipped, unclipped = comparison.reference[-1], train_reference(build(setting), batches(setting))[-1]
    comparison.facts["the limit cuts"] = any((unclipped[name] != clipped[name]).any() for name in clipped)
    return comparison


def tied_and_frozen(setting: Setting, world: World) -> Comparison:
    """Input and output share a matrix, and the first block is frozen: it has no gradient to reduce."""
    replica = build_part_frozen(setting)
    frozen = [name for name, parameter in replica.named_parameters() if not parameter.requires_grad]
    initial = weights(replica)
    comparison = compare(setting, world, ddp(replica), build_part_frozen(setting))
    unchanged = all(torch.equal(comparison.replicas[-1][name], initial[name]) for name in frozen)
    tied = replica.output.weight is replica.token_embedding.weight
    comparison.facts = {"the frozen weights stayed": unchanged, "the tied weights are one": tied}
    return comparison


RUNGS = [
    Rung("plain", "the batch", plain, reordered, REORDERED),
    Rung("AdamW", "the batch", with_adamw, divided, DIVIDED),
    Rung("accumulation", "the batch", accumulation, reordered, REORDERED),
    Rung("ragged token counts", "the batch", ragged, reordered, REORDERED),
    Rung("uneven last batch", "the batch", uneven, reordered, REORDERED),
    Rung("clipping", "the batch", clipping, reordered, REORDERED),
    Rung("tied and frozen", "the model", tied_and_frozen, reordered, REORDERED),
]
