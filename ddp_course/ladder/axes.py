"""Helpers of the rungs beyond data parallelism: their axes, the training loop, and sizes that divide."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ddp_course.distributed.mesh import Axis
from ddp_course.distributed.process_group import World
from ddp_course.ladder.comparison import Comparison, Weights, batches, train, train_reference
from ddp_course.ladder.models import build_minigpt
from ddp_course.ladder.setting import Batch, Setting, share, target_count
from ddp_course.ladder.tolerance import REORDERED

HEADS = 4  # attention heads, which divide over 2 and 4 ranks
SHARDED_SUMS = replace(
    REORDERED,
    because=f"{REORDERED.because}; it also covers sums inside the model that are sharded: over units, heads, keys or "
    "experts",
)


def axis_of(mesh: DeviceMesh, name: str) -> Axis:
    """The axis of a mesh with this name."""
    return Axis(mesh[name].size(), mesh.get_local_rank(name), mesh.get_group(name))


def all_ranks(world: World) -> Axis:
    """An axis of all ranks."""
    return Axis(world.size, world.rank, dist.group.WORLD)


def inner_ranks(ranks: int) -> int:
    """The size of the inner axis of a mesh: 2 if the number of ranks is even, else all ranks."""
    return 2 if ranks % 2 == 0 else ranks


def mesh_of_replicas(name: str, world: World) -> DeviceMesh:
    """A mesh of two axes: "data" for the replicas, and `name`, of size `inner_ranks`, over which each is sharded."""
    inner = inner_ranks(world.size)
    return init_device_mesh("cpu", (world.size // inner, inner), mesh_dim_names=("data", name))


def compare_sharded(
    setting: Setting,
    model: nn.Module,
    gradients: Callable[[Batch], None],
    read: Callable[[nn.Module], Weights],
    reference: nn.Module | None = None,
    clip: float | None = None,
) -> Comparison:
    """Train a sharded model on all ranks, and `reference` in one process on the same global batches.

    model: this rank's part. gradients: computes the gradients of the mean loss over a global batch, clipped. read:
    returns the weights of the whole model, gathered from the ranks. reference: MiniGPT unless given, with its gradients
    clipped to the norm `clip`.
    """
    global_batches = batches(setting)
    sharded = train(model, global_batches, gradients, read=read)
    return Comparison(sharded, train_reference(reference or build_minigpt(setting), global_batches, clip=clip))


def share_along(setting: Setting, world: World, batch: Batch, data: Axis) -> Batch:
    """This rank's windows, by its coordinate on the data axis. The ranks of a replica have the same windows."""
    if setting.fault == "global_rank":
        return share(batch, world.rank, world.size)
    return share(batch, 0 if setting.fault == "same_share" else data.rank, data.size)


def divide_by_targets(setting: Setting, loss: Tensor, batch: Batch, parts: int) -> Tensor:
    """Divide the summed loss of one of `parts` parts of a global batch by the number of targets of the whole batch."""
    return loss * (parts if setting.fault == "sum_for_mean" else 1) / target_count(batch)


def all_reduce_gradients(setting: Setting, parameters: Iterable[nn.Parameter], axis: Axis) -> None:
    """All-reduce the gradients over the axis, whose ranks have computed different parts of the batch."""
    if setting.fault != "no_all_reduce":
        for parameter in parameters:
            dist.all_reduce(parameter.grad, group=axis.group)


def with_heads(setting: Setting, ranks: int) -> Setting:
    """Change the setting so that heads divide over the ranks, and the width over the heads."""
    heads = HEADS if HEADS % ranks == 0 else ranks
    return replace(setting, heads=heads, width=up_to_multiple(setting.width, heads))


def with_tokens(setting: Setting, ranks: int) -> Setting:
    """Change the setting as `with_heads` does, and so that the context divides into two chunks per rank."""
    return replace(with_heads(setting, ranks), context=up_to_multiple(setting.context, 2 * ranks))


def up_to_multiple(number: int, unit: int) -> int:
    """The smallest multiple of `unit` that is not below `number`."""
    return math.ceil(number / unit) * unit
