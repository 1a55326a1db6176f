"""What the rungs beyond data parallelism share: their axes, the loop of updates, sizes that divide."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ddp_course.distributed.mesh import Axis
from ddp_course.distributed.process_group import World
from ddp_course.ladder.comparison import Weights, sgd
from ddp_course.ladder.setting import Batch, Setting, share, target_count
from ddp_course.ladder.tolerance import REORDERED

HEADS = 4  # of attention: enough to be cut over 2 and 4 ranks
CUT = REORDERED + "; it also covers sums inside the model that are cut: over units, heads, keys or experts"


def along(mesh: DeviceMesh, name: str) -> Axis:
    """The axis of this name of a mesh."""
    return Axis(mesh[name].size(), mesh.get_local_rank(name), mesh.get_group(name))


def all_ranks(world: World) -> Axis:
    """One axis that takes every rank."""
    return Axis(world.size, world.rank, dist.group.WORLD)


def inner_ranks(ranks: int) -> int:
    """How many ranks the inner axis of a mesh takes: pairs if the ranks come in pairs, else all."""
    return 2 if ranks % 2 == 0 else ranks


def data_and(name: str, world: World) -> DeviceMesh:
    """A mesh of replicas ("data"), each of which is cut over the ranks of the inner axis `name`."""
    inner = inner_ranks(world.size)
    return init_device_mesh("cpu", (world.size // inner, inner), mesh_dim_names=("data", name))


def updates(
    joint: Iterable[Batch],
    parameters: Iterable[nn.Parameter],
    gradients: Callable[[Batch], None],
    read: Callable[[], Weights],
) -> list[Weights]:
    """The weights before the first update and after each, as `comparison.together` returns them.

    gradients: leaves in each parameter of this rank the gradient of the mean over a global batch.
    read: the whole model's weights, gathered from the ranks.
    """
    optimizer, history = sgd(parameters), [read()]
    for batch in joint:
        optimizer.zero_grad()
        gradients(batch)
        optimizer.step()
        history.append(read())
    return history


def share_along(setting: Setting, world: World, batch: Batch, data: Axis) -> Batch:
    """This rank's windows: those of its place on the data axis. Ranks of one replica have the same ones."""
    if setting.fault == "global_rank":
        return share(batch, world.rank, world.size)
    return share(batch, 0 if setting.fault == "same_share" else data.rank, data.size)


def divided(setting: Setting, loss: Tensor, batch: Batch, parts: int) -> Tensor:
    """One of `parts` summed losses over the targets of the global batch."""
    return loss * (parts if setting.fault == "sum_for_mean" else 1) / target_count(batch)


def add_gradients(setting: Setting, parameters: Iterable[nn.Parameter], axis: Axis) -> None:
    """Sum the gradients over the ranks of the axis, each of which has seen a part of the batch."""
    if setting.fault != "no_all_reduce":
        for parameter in parameters:
            dist.all_reduce(parameter.grad, group=axis.group)


def with_heads(setting: Setting, ranks: int) -> Setting:
    """Heads that divide over the ranks, and a width that divides into them."""
    heads = HEADS if HEADS % ranks == 0 else ranks
    return replace(setting, heads=heads, width=up_to_multiple(setting.width, heads))


def with_tokens(setting: Setting, ranks: int) -> Setting:
    """Such heads, and windows that can be cut into two parts per rank."""
    return replace(with_heads(setting, ranks), context=up_to_multiple(setting.context, 2 * ranks))


def up_to_multiple(number: int, unit: int) -> int:
    """The smallest multiple of `unit` that is not below `number`."""
    return -(-number // unit) * unit
