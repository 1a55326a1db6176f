"""Rungs about the batch: its division into shares and micro-batches, and the divisor of its gradient."""

from dataclasses import replace
from functools import partial

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course.data.windows import IGNORED
from ddp_course.distributed.process_group import World
from ddp_course.ladder.comparison import Comparison, Rung, adamw, batches, compare, train_reference, weights
from ddp_course.ladder.models import build, build_part_frozen
from ddp_course.ladder.setting import Batch, Setting, global_batch
from ddp_course.ladder.tolerance import REORDERED, REORDERED_WITH_ADAMW

CLIP = 0.05  # limit of the gradient's norm, far below the norms of these models, so that it always clips


def plain(setting: Setting, world: World) -> Comparison:
    """DDP with nothing added. Each rank builds different weights, which DDP replaces by those of rank 0."""
    model = build(replace(setting, seed=(setting.seed + world.rank) % 2**64))
    return compare(setting, world, DDP(model))


def data_parallel(setting: Setting, world: World, **options) -> Comparison:
    """DDP. options: further arguments of `compare`."""
    return compare(setting, world, DDP(build(setting)), **options)


def ragged(setting: Setting, world: World) -> Comparison:
    """Windows with 1 to `context` targets, accumulated: micro-batches and ranks have different numbers of targets."""
    global_batches = [ragged_batch(setting, step) for step in range(setting.steps)]
    return data_parallel(setting, world, global_batches=global_batches, accumulate=2)


def ragged_batch(setting: Setting, step: int) -> Batch:
    """A global batch with windows of different lengths: targets after the end of a window are ignored."""
    inputs, targets = global_batch(setting, step)
    lengths = 1 + (torch.arange(setting.windows) * 5 + step) % setting.context
    after_end = torch.arange(setting.context) >= lengths[:, None]
    return inputs, targets.masked_fill(after_end, IGNORED)


def uneven(setting: Setting, world: World) -> Comparison:
    """Every third global batch has 3 windows: two ranks have 2 and 1, and one of four ranks has none."""
    global_batches = [global_batch(setting, step, 3 if step % 3 == 2 else None) for step in range(setting.steps)]
    return data_parallel(setting, world, global_batches=global_batches)


def clipping(setting: Setting, world: World) -> Comparison:
    """The gradient is clipped after the all-reduce, so every rank scales the global gradient by the same factor."""
    comparison = data_parallel(setting, world, clip=CLIP)
    clipped, unclipped = comparison.reference[-1], train_reference(build(setting), batches(setting))[-1]
    comparison.facts["the gradient was clipped"] = any((unclipped[name] != clipped[name]).any() for name in clipped)
    return comparison


def tied_and_frozen(setting: Setting, world: World) -> Comparison:
    """Input and output share a matrix, and the first block is frozen: it has no gradient to reduce."""
    replica = build_part_frozen(setting)
    frozen = [name for name, parameter in replica.named_parameters() if not parameter.requires_grad]
    initial = weights(replica)
    comparison = compare(setting, world, DDP(replica), build_part_frozen(setting))
    unchanged = all(torch.equal(comparison.replicas[-1][name], initial[name]) for name in frozen)
    tied = replica.output.weight is replica.token_embedding.weight
    comparison.facts = {"the frozen weights are unchanged": unchanged, "the tied weights are one tensor": tied}
    return comparison


RUNGS = [
    Rung("plain", "the batch", plain, REORDERED),
    Rung("AdamW", "the batch", partial(data_parallel, make_optimizer=adamw), REORDERED_WITH_ADAMW),
    Rung("accumulation", "the batch", partial(data_parallel, accumulate=2), REORDERED),  # the first under no_sync
    Rung("ragged token counts", "the batch", ragged, REORDERED),
    Rung("uneven last batch", "the batch", uneven, REORDERED),
    Rung("clipping", "the batch", clipping, REORDERED),
    Rung("tied and frozen", "the model", tied_and_frozen, REORDERED),
]
