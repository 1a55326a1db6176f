"""Rungs about the batch: how it is cut into shares and parts, and what its gradient is divided by."""

from dataclasses import replace

import torch

from ddp_course.data.windows import IGNORED
from ddp_course.distributed.process_group import World
from ddp_course.ladder.comparison import Comparison, Rung, adamw, alone, batches, ddp, together, weights
from ddp_course.ladder.setting import Batch, Setting, global_batch
from ddp_course.ladder.subjects import build
from ddp_course.ladder.tolerance import DIVIDED, REORDERED, divided, reordered

CLIP = 0.05  # of the gradient's norm; far below what these models have, so that it always cuts


def plain(setting: Setting, world: World) -> Comparison:
    """Nothing but the wrapper. Each rank starts from weights of its own, until rank 0's are broadcast."""
    joint, mine = batches(setting), build(replace(setting, seed=(setting.seed + world.rank) % 2**64))
    return Comparison(together(setting, world, ddp(mine), joint), alone(build(setting), joint))


def with_adamw(setting: Setting, world: World) -> Comparison:
    """The optimizer that everybody uses."""
    joint = batches(setting)
    several = together(setting, world, ddp(build(setting)), joint, optimizer=adamw)
    return Comparison(several, alone(build(setting), joint, optimizer=adamw))


def accumulation(setting: Setting, world: World) -> Comparison:
    """Each rank takes its share in two parts, the first under no_sync."""
    joint = batches(setting)
    several = together(setting, world, ddp(build(setting)), joint, accumulate=2)
    return Comparison(several, alone(build(setting), joint))


def ragged(setting: Setting, world: World) -> Comparison:
    """Windows with 1 to `context` targets, accumulated: parts and ranks hold different numbers of tokens."""
    joint = [shortened(setting, update) for update in range(setting.steps)]
    several = together(setting, world, ddp(build(setting)), joint, accumulate=2)
    return Comparison(several, alone(build(setting), joint))


def shortened(setting: Setting, update: int) -> Batch:
    """A global batch whose windows end early; what is missing in the targets does not count."""
    inputs, targets = global_batch(setting, update)
    lengths = 1 + (torch.arange(setting.windows) * 5 + update) % setting.context
    beyond = torch.arange(setting.context) >= lengths[:, None]
    return inputs, targets.masked_fill(beyond, IGNORED)


def uneven(setting: Setting, world: World) -> Comparison:
    """Every third global batch has 3 windows: 2 + 1 on two ranks, and of four ranks one has none."""
    joint = [global_batch(setting, update, 3 if update % 3 == 2 else None) for update in range(setting.steps)]
    return Comparison(together(setting, world, ddp(build(setting)), joint), alone(build(setting), joint))


def clipping(setting: Setting, world: World) -> Comparison:
    """The norm is cut after the all-reduce, so every rank cuts the gradient of the global batch by the same factor."""
    joint = batches(setting)
    several = together(setting, world, ddp(build(setting)), joint, clip=CLIP)
    uncut = alone(build(setting), joint)
    one = alone(build(setting), joint, clip=CLIP)
    cuts = any((uncut[-1][name] != one[-1][name]).any() for name in one[-1])
    return Comparison(several, one, facts={"the limit cuts": cuts})


def tied_and_frozen(setting: Setting, world: World) -> Comparison:
    """Input and output share a matrix, and the first block is frozen: it has no gradient to wait for."""

    def part_frozen():
        model = build(setting)
        model.blocks[0].requires_grad_(False)
        return model

    joint, replica = batches(setting), part_frozen()
    frozen = [name for name, parameter in replica.named_parameters() if not parameter.requires_grad]
    before = weights(replica)
    several = together(setting, world, ddp(replica), joint)
    stayed = all(torch.equal(several[-1][name], before[name]) for name in frozen)
    tied = replica.output.weight is replica.token_embedding.weight
    facts = {"the frozen weights stayed": stayed, "the tied weights are one": tied}
    return Comparison(several, alone(part_frozen(), joint), facts)


RUNGS = [
    Rung("plain", "the batch", plain, reordered, REORDERED),
    Rung("AdamW", "the batch", with_adamw, divided, DIVIDED),
    Rung("accumulation", "the batch", accumulation, reordered, REORDERED),
    Rung("ragged token counts", "the batch", ragged, reordered, REORDERED),
    Rung("uneven last batch", "the batch", uneven, reordered, REORDERED),
    Rung("clipping", "the batch", clipping, reordered, REORDERED),
    Rung("tied and frozen", "the model", tied_and_frozen, reordered, REORDERED),
]
