"""Helpers of the rungs beyond data parallelism: their axes, the training loop, and sizes that divide."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ddp_course.distributed.mesh import Axis
from ddp_course.distributed.process_group import World
from ddp_course.ladder.comparison import Comparison, Weights, batches, sgd, train_reference
from ddp_course.ladder.setting import Batch, Setting, share, target_count
from ddp_course.ladder.subjects import build_minigpt
from ddp_course.ladder.tolerance import REORDERED

HEADS = 4  # of attention: enough to be cut over 2 and 4 ranks
CUT = REORDERED + "; it also covers sums inside the model that are cut: over units, heads, keys or experts"


def axis_of(mesh: DeviceMesh, name: str) -> Axis:
    """The axis of a mesh with this name."""
    return Axis(mesh[name].size(), mesh.get_local_rank(name), mesh.get_group(name))


def all_ranks(world: World) -> Axis:
    """An axis of all ranks."""
    return Axis(world.size, world.rank, dist.group.WORLD)


def inner_ranks(ranks: int) -> int:
    """The size of the inner axis of a mesh: 2 if the number of ranks is even, else all ranks."""
    return 2 if ranks % 2 == 0 else ranks


def data_and(name: str, world: World) -> DeviceMesh:
    """A mesh of replicas ("data"), each of which is sharded over the ranks of the inner axis `name`."""
    inner = inner_ranks(world.size)
    return init_device_mesh("cpu", (world.size // inner, inner), mesh_dim_names=("data", name))


def compare_sharded(
    setting: Setting,
    parameters: Iterable[nn.Parameter],
    gradients: Callable[[Batch], None],
    read: Callable[[], Weights],
    reference: nn.Module | None = None,
    clip: float | None = None,
) -> Comparison:
    """Train a sharded model, and one process's on the same global batches.

    gradients: puts the gradient of the mean loss over a global batch into each parameter of this rank, clipped.
    read: the whole model's weights, gathered from the ranks. reference: MiniGPT unless given; clip: its limit.
    """
    optimizer, history, global_batches = sgd(parameters), [read()], batches(setting)
    for batch in global_batches:
        optimizer.zero_grad()
        gradients(batch)
        optimizer.step()
        history.append(read())
    return Comparison(history, train_reference(reference or build_minigpt(setting), global_batches, clip=clip))


def share_along(setting: Setting, world: World, batch: Batch, data: Axis) -> Batch:
    """This rank's windows, by its coordinate on the data axis. The ranks of a replica have the same windows."""
    if setting.fault == "global_rank":
        return share(batch, world.rank, world.size)
    return share(batch, 0 if setting.fault == "same_share" else data.rank, data.size)


def divided(setting: Setting, loss: Tensor, batch: Batch, parts: int) -> Tensor:
    """Divide one of `parts` summed losses by the number of targets of the global batch."""
    return loss * (parts if setting.fault == "sum_for_mean" else 1) / target_count(batch)


def add_gradients(setting: Setting, parameters: Iterable[nn.Parameter], axis: Axis) -> None:
    """Sum the gradients over the ranks of the axis, each of which has computed a part of the batch."""
    if setting.fault != "no_all_reduce":
        for parameter in parameters:
            dist.all_reduce(parameter.grad, group=axis.group)


def with_heads(setting: Setting, ranks: int) -> Setting:
    """Change the setting to heads that divide over the ranks, and a width that divides into heads."""
    heads = HEADS if HEADS % ranks == 0 else ranks
    return replace(setting, heads=heads, width=up_to_multiple(setting.width, heads))


def with_tokens(setting: Setting, ranks: int) -> Setting:
    """Change the setting as `with_heads`, and to a context that divides into two chunks per rank."""
    return replace(with_heads(setting, ranks), context=up_to_multiple(setting.context, 2 * ranks))


def up_to_multiple(number: int, unit: int) -> int:
    """The smallest multiple of `unit` that is not below `number`."""
    return math.ceil(number / unit) * unit
