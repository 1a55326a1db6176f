"""Rungs about meshes of two and three axes: data parallel or FSDP on one, tensor, pipeline or experts on the others."""

import logging
from dataclasses import replace
from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from ddp_course.distributed.process_group import World
from ddp_course.ladder.axes import (
    CUT,
    axis_of,
    compare_sharded,
    data_and,
    divided,
    inner_ranks,
    share_along,
    up_to_multiple,
    with_heads,
)
from ddp_course.ladder.batch_rungs import CLIP
from ddp_course.ladder.comparison import Comparison, Rung, mistake
from ddp_course.ladder.pipeline_rungs import fits, piped
from ddp_course.ladder.setting import Batch, Setting
from ddp_course.ladder.tensor_rungs import fused_weights, plan_of_block, shard_by_torch
from ddp_course.ladder.tolerance import REORDERED, reordered


def fsdp_and_tensor(setting: Setting, world: World, clip: float | None = None) -> Comparison:
    """First tensor parallel inside a replica, then FSDP2 over the replicas."""
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)  # advice on speed
    mesh = data_and("tensor", world)
    data, model = axis_of(mesh, "data"), shard_by_torch(setting, mesh["tensor"], plan_of_block())
    for part in (*model.blocks, model):
        fully_shard(part, mesh=mesh["data"])

    def gradients(batch: Batch) -> None:
        loss = model(*share_along(setting, world, batch, data))
        model.set_requires_gradient_sync(setting.fault != "no_all_reduce")
        (divided(setting, loss, batch, data.size) * data.size).backward()  # FSDP2 averages over the data axis
        if clip:
            clip_on_meshes(model, clip)

    return compare_sharded(setting, model.parameters(), gradients, lambda: fused_weights(model), clip=clip)


def clip_on_meshes(model: nn.Module, limit: float) -> None:
    """Clip by the norm over both meshes, which clip_grad_norm_ refuses: tensor-parallel weights lie on both axes, the
    others on the data axis."""
    by_mesh = {}
    for parameter in model.parameters():
        by_mesh.setdefault(parameter.device_mesh, []).append(parameter)
    norms = [get_total_norm([p.grad for p in parameters]).full_tensor() for parameters in by_mesh.values()]
    total = torch.linalg.vector_norm(torch.stack(norms))
    for parameters in by_mesh.values():
        clip_grads_with_norm_(parameters, limit, total)


def piped_replicas(setting: Setting, world: World) -> Comparison:
    """Data parallel around pipelines: the gradients of a stage are added over its replicas."""
    mesh = data_and("pipe", world)
    return piped(setting, world, axis_of(mesh, "pipe"), axis_of(mesh, "data"), "1F1B", 1)


def three_axes(setting: Setting, world: World) -> Comparison:
    """Replicas of pipelines with sharded layers, clipped by the norm of the whole model."""
    mesh = init_device_mesh("cpu", sizes_of_three(world.size), mesh_dim_names=("data", "pipe", "tensor"))
    data, pipe, tensor = (axis_of(mesh, name) for name in mesh.mesh_dim_names)
    return piped(setting, world, pipe, data, "1F1B", 1, CLIP, tensor)


def sizes_of_three(ranks: int) -> tuple[int, int, int]:
    """The sizes (data, pipe, tensor): tensor and pipe have two ranks each if possible, data has the rest."""
    tensor = 2 if ranks % 2 == 0 else 1
    pipe = 2 if ranks // tensor % 2 == 0 else 1
    return ranks // tensor // pipe, pipe, tensor


def fits_three(setting: Setting, ranks: int) -> Setting:
    """Make heads and stages divide, and windows by all ranks, so that the fault global_rank runs as well."""
    _, pipe, tensor = sizes_of_three(ranks)
    return fits(with_heads(setting, tensor), pipe, 1, ranks)


def fits_tensor(setting: Setting, ranks: int) -> Setting:
    """Make heads divide over the inner axis, and windows by all ranks, so that the fault global_rank runs as well."""
    return replace(with_heads(setting, inner_ranks(ranks)), windows=up_to_multiple(setting.windows, ranks))


def fits_pipe(setting: Setting, ranks: int) -> Setting:
    """Make stages divide over the inner axis, and micro-batches over the replicas."""
    inner = inner_ranks(ranks)
    return fits(setting, inner, 1, ranks // inner)


TOPIC = "meshes"
SHARDED = Rung("FSDP2 x tensor", TOPIC, fsdp_and_tensor, reordered, CUT, fits=fits_tensor)
THREE = Rung("data x pipeline x tensor", TOPIC, three_axes, reordered, CUT, fits=fits_three)
RUNGS = [
    SHARDED,
    Rung("FSDP2 x tensor: clipping", TOPIC, partial(fsdp_and_tensor, clip=CLIP), reordered, CUT, fits=fits_tensor),
    Rung("data x pipeline", TOPIC, piped_replicas, reordered, REORDERED, fits=fits_pipe),
    THREE,
    mistake(
        "data by global rank",
        "global_rank",
        SHARDED,
        "the ranks of one replica need the same windows; by the global rank each of them takes others",
    ),
    mistake(
        "three axes: data by rank",
        "global_rank",
        THREE,
        "the first stage reads inputs, the last one targets: by the global rank they are of different windows",
    ),
    mistake(
        "three axes: own norm",
        "own_norm",
        THREE,
        "a rank holds parts of the layers of one stage: by the norm of these each rank scales by another factor",
    ),
]
