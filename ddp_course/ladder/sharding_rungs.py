"""Rungs about sharded training state: the optimizer's state, or weights and gradients as well."""

from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

from ddp_course.distributed.by_hand import ShardedOptimizer, full_state_dict, fully_shard_by_hand
from ddp_course.distributed.process_group import World
from ddp_course.ladder.batch_rungs import CLIP
from ddp_course.ladder.comparison import Comparison, Rung, Weights, adamw, compare, ddp
from ddp_course.ladder.setting import Setting
from ddp_course.ladder.subjects import build
from ddp_course.ladder.tolerance import DIVIDED, REORDERED, divided, reordered


def zero_1(setting: Setting, world: World) -> Comparison:
    """torch's ZeRO-1: each rank keeps AdamW's averages of its part of the weights, updates it, and broadcasts it."""
    return sharded_state(
        setting,
        world,
        lambda parameters: ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim.AdamW, lr=1e-3),
    )


def zero_1_by_hand(setting: Setting, world: World) -> Comparison:
    """The course's own."""
    return sharded_state(setting, world, lambda parameters: ShardedOptimizer(parameters, torch.optim.AdamW, lr=1e-3))


def sharded_state(setting: Setting, world: World, optimizer) -> Comparison:
    return compare(setting, world, ddp(build(setting)), optimizer=optimizer, reference_optimizer=adamw)


def fully_sharded(setting: Setting, world: World) -> Comparison:
    """torch's FSDP2: weights, gradients and optimizer state in shards, whole only while a block computes."""
    return compare(setting, world, sharded(setting))


def fully_sharded_kept(setting: Setting, world: World) -> Comparison:
    """Weights stay gathered from forward to backward: one all-gather less and more memory, as in ZeRO-2."""
    return compare(setting, world, sharded(setting, reshard_after_forward=False))


def fully_sharded_accumulation(setting: Setting, world: World) -> Comparison:
    """FSDP2 with two micro-batches, of which the first sends no gradients."""
    return compare(setting, world, sharded(setting), accumulate=2)


def fully_sharded_clipping(setting: Setting, world: World) -> Comparison:
    """The norm of sharded gradients is that of all shards: torch's clip_grad_norm_ sums over the ranks."""
    return compare(setting, world, sharded(setting), clip=CLIP)


def hybrid_sharded(setting: Setting, world: World) -> Comparison:
    """Shards within pairs of ranks, replicas between the pairs. An odd number of ranks is one group."""
    shards = 2 if world.size % 2 == 0 else world.size
    mesh = init_device_mesh("cpu", (world.size // shards, shards), mesh_dim_names=("replicate", "shard"))
    return compare(setting, world, sharded(setting, mesh=mesh))


def sharded(setting: Setting, **options) -> nn.Module:
    """Shard the setting's model by FSDP2, each block and then the rest.

    FSDP2 has no no_sync, but set_requires_gradient_sync, which `no_sync` sets and resets.
    """
    model = build(setting)
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)

    @contextmanager
    def no_sync():
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)

    model.no_sync = no_sync
    return model


def fully_sharded_by_hand(setting: Setting, world: World) -> Comparison:
    """The course's own."""
    model = build(setting)
    names = [name for name, _ in model.named_parameters()]

    def gathered_weights(sharded) -> Weights:
        full = full_state_dict(sharded)
        return {name: full[name].clone() for name in names}

    return compare(setting, world, fully_shard_by_hand(model, model.blocks), read=gathered_weights)


RUNGS = [
    Rung("ZeRO-1", "shards", zero_1, divided, DIVIDED),
    Rung("by hand: ZeRO-1", "shards", zero_1_by_hand, divided, DIVIDED),
    Rung("fully sharded", "shards", fully_sharded, reordered, REORDERED),
    Rung("FSDP2: weights kept", "shards", fully_sharded_kept, reordered, REORDERED),
    Rung("FSDP2: accumulation", "shards", fully_sharded_accumulation, reordered, REORDERED),
    Rung("FSDP2: clipping", "shards", fully_sharded_clipping, reordered, REORDERED),
    Rung("FSDP2: hybrid", "shards", hybrid_sharded, reordered, REORDERED),
    Rung("by hand: fully sharded", "shards", fully_sharded_by_hand, reordered, REORDERED),
]
