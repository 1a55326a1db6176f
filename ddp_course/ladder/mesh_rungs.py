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
    SHARDED_SUMS,
    axis_of,
    compare_sharded,
    divide_by_targets,
    inner_ranks,
    mesh_of_replicas,
    share_along,
    up_to_multiple,
    with_heads,
)
from ddp_course.ladder.batch_rungs import CLIP
from ddp_course.ladder.comparison import Comparison, Rung, mistake
from ddp_course.ladder.pipeline_rungs import fits, train_pipelines
from ddp_course.ladder.setting import Batch, Setting
from ddp_course.ladder.tensor_rungs import fused_weights, plan_of_block, shard_by_torch
from ddp_course.ladder.tolerance import REORDERED


def fsdp_and_tensor(setting: Setting, world: World, clip: float | None = None) -> Comparison:
    """Tensor parallel within a replica, then FSDP2 over the replicas."""
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)  # hides advice on speed
    mesh = mesh_of_replicas("tensor", world)
    data = axis_of(mesh, "data")
    model = shard_by_torch(setting, mesh["tensor"], plan_of_block())
    for part in (*model.blocks, model):
        fully_shard(part, mesh=mesh["data"])

    def gradients(batch: Batch) -> None:
        loss = model(*share_along(setting, world, batch, data))
        model.set_requires_gradient_sync(setting.fault != "no_all_reduce")
        (divide_by_targets(setting, loss, batch, data.size) * data.size).backward()  # FSDP2 averages over the data axis
        if clip:
            clip_on_meshes(model, clip)

    return compare_sharded(setting, model, gradients, fused_weights, clip=clip)


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


def replicated_pipelines(setting: Setting, world: World) -> Comparison:
    """Data parallel over pipelines: the gradients of a stage are all-reduced over its replicas."""
    mesh = mesh_of_replicas("pipe", world)
    return train_pipelines(setting, world, axis_of(mesh, "pipe"), axis_of(mesh, "data"), "1F1B", 1)


def three_axes(setting: Setting, world: World) -> Comparison:
    """Data parallel over pipelines of tensor-parallel layers, clipped by the norm of the whole model."""
    mesh = init_device_mesh("cpu", sizes_of_three(world.size), mesh_dim_names=("data", "pipe", "tensor"))
    data, pipe, tensor = (axis_of(mesh, name) for name in mesh.mesh_dim_names)
    return train_pipelines(setting, world, pipe, data, "1F1B", 1, CLIP, tensor)


def sizes_of_three(ranks: int) -> tuple[int, int, int]:
    """The sizes (data, pipe, tensor): tensor and then pipe are 2 if the ranks divide, data is the rest."""
    tensor = 2 if ranks % 2 == 0 else 1
    pipe = 2 if ranks // tensor % 2 == 0 else 1
    return ranks // tensor // pipe, pipe, tensor


def fits_three(setting: Setting, ranks: int) -> Setting:
    """Make heads and stages divide over their axes, and windows over all ranks, as the fault global_rank needs."""
    _, pipe, tensor = sizes_of_three(ranks)
    return fits(with_heads(setting, tensor), pipe, 1, ranks)


def fits_tensor(setting: Setting, ranks: int) -> Setting:
    """Make heads divide over the inner axis, and windows over all ranks, as the fault global_rank needs."""
    return replace(with_heads(setting, inner_ranks(ranks)), windows=up_to_multiple(setting.windows, ranks))


def fits_pipe(setting: Setting, ranks: int) -> Setting:
    """Make stages divide over the inner axis, and micro-batches over the replicas."""
    inner = inner_ranks(ranks)
    return fits(setting, inner, 1, ranks // inner)


TOPIC = "meshes"
SHARDED = Rung("FSDP2 x tensor", TOPIC, fsdp_and_tensor, SHARDED_SUMS, fits=fits_tensor)
CLIPPED = replace(SHARDED, name="FSDP2 x tensor: clipping", run=partial(fsdp_and_tensor, clip=CLIP))
THREE = Rung("data x pipeline x tensor", TOPIC, three_axes, SHARDED_SUMS, fits=fits_three)
RUNGS = [
    SHARDED,
    CLIPPED,
    Rung("data x pipeline", TOPIC, replicated_pipelines, REORDERED, fits=fits_pipe),
    THREE,
    mistake("data by global rank", "global_rank", SHARDED),
    mistake(
        "three axes: data by rank",
        "global_rank",
        THREE,
        "the first stage reads inputs, the last one targets: by the global rank, those of different windows",
    ),
    mistake(
        "three axes: own norm",
        "own_norm",
        THREE,
        "a rank has parts of the layers of one stage: by the norm of these, each rank scales by a different factor",
    ),
]
