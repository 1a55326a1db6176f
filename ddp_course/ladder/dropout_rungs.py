"""Rungs about dropout on a mesh: ranks with copies of an activation draw one mask, ranks with parts of it others.

The masks are those of `distributed.dropout_masks`. Each rank has some of the windows and, in every block, some of the
heads; the output of its heads is dropped by units of its own, the branches by the units that its tensor peers drop.
"""

import torch
from torch import Tensor, nn

from ddp_course.distributed.dropout_masks import Masks, window_keys
from ddp_course.distributed.mesh import Axis
from ddp_course.distributed.process_group import World
from ddp_course.ladder.axes import CUT, add_gradients, axis_of, compare_sharded, data_and, divided, share_along
from ddp_course.ladder.comparison import Comparison, Rung, mistake
from ddp_course.ladder.cut_layers import cut_by_hand, gathered
from ddp_course.ladder.mesh_rungs import TOPIC, fits_tensor
from ddp_course.ladder.setting import Batch, Setting, share
from ddp_course.ladder.subjects import build_minigpt
from ddp_course.ladder.tolerance import reordered

DROPOUT = 0.2


class Dropping(nn.Module):
    """MiniGPT with dropout after its heads and its branches; the n-th forward pass has the masks of step n."""

    def __init__(self, setting: Setting, data: Axis, tensor: Axis) -> None:
        super().__init__()
        self.setting, self.data, self.tensor, self.step = setting, data, tensor, 0
        self.model = build_minigpt(setting)
        if tensor.size > 1:
            cut_by_hand(self.model, tensor)
        for layer, block in enumerate(self.model.blocks):
            block.attention.projection.register_forward_pre_hook(
                lambda _, inputs, site=3 * layer: self.drop_heads(*inputs, site)
            )
            for site, branch in enumerate((block.attention, block.projection), 3 * layer + 1):
                branch.register_forward_hook(lambda *inputs_and_y, site=site: self.masks.drop(inputs_and_y[-1], site))

    def drop_heads(self, x: Tensor, site: int) -> Tensor:
        """x: (windows, tokens, units of this rank's heads)."""
        count = self.setting.heads // self.tensor.size
        first = 0 if self.setting.fault == "masks_repeated" else self.tensor.rank * count
        by_head = x.unflatten(-1, (count, -1)).transpose(1, 2)
        units = torch.arange(by_head.shape[-1])
        return self.masks.drop_weights(by_head, site, first + torch.arange(count), units).transpose(1, 2).flatten(2)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        keys = window_keys(self.setting.seed, self.step, self.setting.windows)
        if self.setting.fault == "masks_by_rank":
            keys = keys + self.tensor.rank
        repeated = self.setting.fault == "masks_repeated"
        own_keys, _ = share((keys, keys), 0 if repeated else self.data.rank, self.data.size)
        self.masks, self.step = Masks(DROPOUT, own_keys, torch.arange(inputs.shape[1])), self.step + 1
        return self.model(inputs, targets)


def dropout(setting: Setting, world: World) -> Comparison:
    """Replicas that are tensor parallel inside; one process drops the same units of the global batch."""
    mesh = data_and("tensor", world)
    data, tensor = axis_of(mesh, "data"), axis_of(mesh, "tensor")
    model, one_rank = Dropping(setting, data, tensor), Axis(1, 0, tensor.group)

    def gradients(batch: Batch) -> None:
        divided(setting, model(*share_along(setting, world, batch, data)), batch, data.size).backward()
        add_gradients(setting, model.parameters(), data)

    reference = Dropping(setting, one_rank, one_rank)
    return compare_sharded(setting, model.parameters(), gradients, lambda: gathered(model), reference)


ON_A_MESH = Rung("data x tensor: dropout", TOPIC, dropout, reordered, CUT, fits=fits_tensor)
RUNGS = [
    ON_A_MESH,
    mistake(
        "dropout: one seed for all",
        "masks_repeated",
        ON_A_MESH,
        "every rank draws the same mask: other windows and other heads lose the units that rank 0's lose",
    ),
    mistake(
        "dropout: a seed per rank",
        "masks_by_rank",
        ON_A_MESH,
        "ranks with copies of an activation drop other units of it, and then their copies of the weights differ, too",
    ),
]
