"""Rungs about sharded training state: the optimizer state, or weights and gradients as well."""

from contextlib import contextmanager
from functools import partial

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

from ddp_course.distributed.by_hand import ShardedOptimizer, full_state_dict, fully_shard_by_hand
from ddp_course.distributed.process_group import World
from ddp_course.ladder.axes import mesh_of_replicas
from ddp_course.ladder.batch_rungs import CLIP, data_parallel
from ddp_course.ladder.comparison import Comparison, Rung, Weights, adamw, compare
from ddp_course.ladder.models import build
from ddp_course.ladder.setting import Setting
from ddp_course.ladder.tolerance import REORDERED, REORDERED_WITH_ADAMW


def zero_1(setting: Setting, world: World, sharded_optimizer: type[torch.optim.Optimizer]) -> Comparison:
    """ZeRO-1: each rank has AdamW's state of some parameters, takes their step, and broadcasts them."""
    sharded_adamw = partial(sharded_optimizer, optimizer_class=torch.optim.AdamW, lr=1e-3)
    return data_parallel(setting, world, make_optimizer=sharded_adamw, make_reference_optimizer=adamw)


def fully_sharded(
    setting: Setting, world: World, accumulate: int = 1, clip: float | None = None, **options
) -> Comparison:
    """torch's FSDP2: weights, gradients and optimizer state are sharded; a block's weights are gathered to compute.

    options: arguments of `fully_shard`.
    """
    return compare(setting, world, sharded(setting, **options), accumulate=accumulate, clip=clip)


def hybrid_sharded(setting: Setting, world: World) -> Comparison:
    """Sharded within pairs of ranks, replicated between the pairs. An odd number of ranks is one group."""
    return fully_sharded(setting, world, mesh=mesh_of_replicas("shard", world))


def sharded(setting: Setting, **options) -> nn.Module:
    """The setting's model, sharded by FSDP2: each block, and then the rest.

    FSDP2 has `set_requires_gradient_sync` instead of `no_sync`; a `no_sync` as in DDP is added.
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
    """Fully sharded with the course's fully_shard_by_hand."""
    model = build(setting)
    names = [name for name, _ in model.named_parameters()]

    def gathered_weights(sharded) -> Weights:
        full = full_state_dict(sharded)
        return {name: full[name].clone() for name in names}

    return compare(setting, world, fully_shard_by_hand(model, model.blocks), read=gathered_weights)


# Weights stay gathered from forward to backward: one all-gather less and more memory, as in ZeRO-2.
without_reshard = partial(fully_sharded, reshard_after_forward=False)
RUNGS = [
    Rung("ZeRO-1", "shards", partial(zero_1, sharded_optimizer=ZeroRedundancyOptimizer), REORDERED_WITH_ADAMW),
    Rung("by hand: ZeRO-1", "shards", partial(zero_1, sharded_optimizer=ShardedOptimizer), REORDERED_WITH_ADAMW),
    Rung("fully sharded", "shards", fully_sharded, REORDERED),
    Rung("FSDP2: weights kept", "shards", without_reshard, REORDERED),
    Rung("FSDP2: accumulation", "shards", partial(fully_sharded, accumulate=2), REORDERED),
    Rung("FSDP2: clipping", "shards", partial(fully_sharded, clip=CLIP), REORDERED),
    Rung("FSDP2: hybrid", "shards", hybrid_sharded, REORDERED),
    Rung("by hand: fully sharded", "shards", fully_sharded_by_hand, REORDERED),
]
