"""Rungs about dropout on a mesh: ranks with copies of an activation draw equal masks, ranks with parts of it do not.

The masks are those of `distributed.dropout_masks`. Each rank has some of the windows and, in every block, some of the
heads. Masks of the heads' outputs differ between tensor ranks; masks of the branches' outputs, which these ranks have
in common, do not.
"""

from functools import partial

import torch
from torch import Tensor, nn

from ddp_course.distributed.dropout_masks import Masks, window_keys
from ddp_course.distributed.mesh import Axis
from ddp_course.distributed.process_group import World
from ddp_course.ladder.axes import (
    SHARDED_SUMS,
    all_reduce_gradients,
    axis_of,
    compare_sharded,
    divide_by_targets,
    mesh_of_replicas,
    share_along,
)
from ddp_course.ladder.comparison import Comparison, Rung, mistake
from ddp_course.ladder.mesh_rungs import TOPIC, fits_tensor
from ddp_course.ladder.models import build_minigpt
from ddp_course.ladder.setting import DROPOUT, Batch, Setting, share
from ddp_course.ladder.sharded_layers import gathered_weights, shard_by_hand


class DropoutModel(nn.Module):
    """MiniGPT with dropout after heads and branches. Forward pass n, from 0, uses the masks of step n."""

    def __init__(self, setting: Setting, data: Axis, tensor: Axis) -> None:
        super().__init__()
        self.setting, self.data, self.tensor, self.step = setting, data, tensor, 0
        self.model = build_minigpt(setting)
        if tensor.size > 1:
            shard_by_hand(self.model, tensor)
        for layer, block in enumerate(self.model.blocks):
            site = 3 * layer
            block.attention.projection.register_forward_pre_hook(partial(self.drop_heads, site=site))
            block.attention.register_forward_hook(partial(self.drop_branch, site=site + 1))
            block.projection.register_forward_hook(partial(self.drop_branch, site=site + 2))

    def drop_heads(self, projection: nn.Module, inputs: tuple[Tensor], site: int) -> Tensor:
        """A forward pre-hook: drop outputs of this rank's heads. inputs: (windows, tokens, units of these heads)."""
        [x] = inputs
        count = self.setting.heads // self.tensor.size
        first = 0 if self.setting.fault == "masks_repeated" else self.tensor.rank * count
        by_head = x.unflatten(-1, (count, -1)).transpose(1, 2)
        units = torch.arange(by_head.shape[-1])
        return self.masks.drop_weights(by_head, site, first + torch.arange(count), units).transpose(1, 2).flatten(2)

    def drop_branch(self, layer: nn.Module, inputs: tuple[Tensor, ...], y: Tensor, site: int) -> Tensor:
        """A forward hook: drop outputs of attention or of the MLP."""
        return self.masks.drop(y, site)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        keys = window_keys(self.setting.seed, self.step, self.setting.windows)
        if self.setting.fault == "masks_by_rank":
            keys = keys + self.tensor.rank
        repeated = self.setting.fault == "masks_repeated"
        own_keys, _ = share((keys, keys), 0 if repeated else self.data.rank, self.data.size)
        self.masks = Masks(DROPOUT, own_keys, torch.arange(inputs.shape[1]))
        self.step += 1
        return self.model(inputs, targets)


def dropout(setting: Setting, world: World) -> Comparison:
    """Data parallel over tensor-parallel replicas; one process drops the same units of the global batch."""
    mesh = mesh_of_replicas("tensor", world)
    data, tensor = axis_of(mesh, "data"), axis_of(mesh, "tensor")
    model = DropoutModel(setting, data, tensor)
    one_rank = Axis(1, 0, tensor.group)

    def gradients(batch: Batch) -> None:
        divide_by_targets(setting, model(*share_along(setting, world, batch, data)), batch, data.size).backward()
        all_reduce_gradients(setting, model.parameters(), data)

    reference = DropoutModel(setting, one_rank, one_rank)
    return compare_sharded(setting, model, gradients, gathered_weights, reference)


DROPOUT_ON_MESH = Rung("data x tensor: dropout", TOPIC, dropout, SHARDED_SUMS, fits=fits_tensor)
RUNGS = [
    DROPOUT_ON_MESH,
    mistake("dropout: one seed for all", "masks_repeated", DROPOUT_ON_MESH),
    mistake("dropout: a seed per rank", "masks_by_rank", DROPOUT_ON_MESH),
]
