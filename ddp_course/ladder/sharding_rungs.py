"""Rungs about who holds what: the optimizer's state in shards, or weights and gradients as well."""

import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

from ddp_course.distributed.by_hand import ShardedOptimizer, full_state_dict, fully_shard_by_hand
from ddp_course.distributed.process_group import World
from ddp_course.ladder.comparison import Comparison, Rung, Weights, adamw, alone, batches, ddp, together
from ddp_course.ladder.setting import Setting
from ddp_course.ladder.subjects import build
from ddp_course.ladder.tolerance import DIVIDED, REORDERED, divided, reordered


def zero_1(setting: Setting, world: World) -> Comparison:
    """torch's ZeRO-1: each rank keeps AdamW's averages of its part of the weights, updates it, and broadcasts it."""
    return sharded_state(setting, world, lambda parameters: ZeroRedundancyOptimizer(
        parameters, optimizer_class=torch.optim.AdamW, lr=1e-3))  # fmt: skip


def zero_1_by_hand(setting: Setting, world: World) -> Comparison:
    """The course's own."""
    return sharded_state(setting, world, lambda parameters: ShardedOptimizer(parameters, torch.optim.AdamW, lr=1e-3))


def sharded_state(setting: Setting, world: World, optimizer) -> Comparison:
    joint = batches(setting)
    several = together(setting, world, ddp(build(setting)), joint, optimizer=optimizer)
    return Comparison(several, alone(build(setting), joint, optimizer=adamw))


def fully_sharded(setting: Setting, world: World) -> Comparison:
    """torch's FSDP2: weights, gradients and optimizer state in shards, whole only while a block computes."""
    joint, model = batches(setting), build(setting)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return Comparison(together(setting, world, model, joint), alone(build(setting), joint))


def fully_sharded_by_hand(setting: Setting, world: World) -> Comparison:
    """The course's own."""
    joint, model = batches(setting), build(setting)
    names = [name for name, _ in model.named_parameters()]
    sharded = fully_shard_by_hand(model, model.blocks)

    def whole(sharded) -> Weights:
        full = full_state_dict(sharded)
        return {name: full[name].clone() for name in names}

    return Comparison(together(setting, world, sharded, joint, read=whole), alone(build(setting), joint))


RUNGS = [
    Rung("ZeRO-1", "shards", zero_1, divided, DIVIDED),
    Rung("by hand: ZeRO-1", "shards", zero_1_by_hand, divided, DIVIDED),
    Rung("fully sharded", "shards", fully_sharded, reordered, REORDERED),
    Rung("by hand: fully sharded", "shards", fully_sharded_by_hand, reordered, REORDERED),
]
