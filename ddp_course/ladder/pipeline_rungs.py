"""Rungs about pipeline parallelism: each rank has some of the layers. Notebook 23."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_

from ddp_course.distributed.mesh import Axis
from ddp_course.distributed.process_group import World
from ddp_course.distributed.sync import gather_objects
from ddp_course.distributed.torch_versions import without_first_messages
from ddp_course.ladder.axes import (
    all_ranks,
    all_reduce_gradients,
    compare_sharded,
    divide_by_targets,
    share_along,
    up_to_multiple,
)
from ddp_course.ladder.batch_rungs import CLIP
from ddp_course.ladder.comparison import Comparison, Rung, Weights, mistake
from ddp_course.ladder.models import build_minigpt
from ddp_course.ladder.setting import Batch, Setting
from ddp_course.ladder.sharded_layers import gathered_weights, shard_by_hand, squared_norm
from ddp_course.ladder.tolerance import REORDERED
from ddp_course.models.minigpt import MiniGPT

V_SCHEDULES = ("ZBVZeroBubble", "DualPipeV")  # in which rank 0 has the first and the last stage
TABLE, COPY = "token_embedding.weight", "output.weight"  # the tied matrix of the first and the last stage


class Stage(nn.Module):
    """Stage `index` of `stages`: some blocks of `model`. The first stage also embeds, the last one computes logits."""

    def __init__(self, model: MiniGPT, index: int, stages: int) -> None:
        super().__init__()
        layers = len(model.blocks)
        own_layers = range(layers * index // stages, layers * (index + 1) // stages)
        self.blocks = nn.ModuleDict({str(number): model.blocks[number] for number in own_layers})
        self.first, self.last = index == 0, index == stages - 1
        if self.first:
            self.token_embedding, self.position_embedding = model.token_embedding, model.position_embedding
        if self.last:
            self.final_norm, self.output = model.final_norm, model.output

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            x = self.token_embedding(x) + self.position_embedding(torch.arange(x.shape[1]))
        for block in self.blocks.values():
            x = block(x)
        return self.output(self.final_norm(x)) if self.last else x


def one_pipeline(setting: Setting, world: World, name: str, per_rank: int, clip: float | None = None) -> Comparison:
    """Train one pipeline over all ranks; see `train_pipelines`."""
    pipe = all_ranks(world)
    return train_pipelines(setting, world, pipe, Axis(1, 0, pipe.group), name, per_rank, clip)


def train_pipelines(
    setting: Setting,
    world: World,
    pipe: Axis,
    data: Axis,
    name: str,
    per_rank: int,
    clip: float | None = None,
    tensor: Axis | None = None,
) -> Comparison:
    """Train replicas over the axis `data`, each a pipeline over `pipe`, with torch's schedule `name`.

    per_rank: stages per rank. tensor: the axis over which the layers of each stage are sharded, if any.
    """
    model = build_minigpt(setting)
    count = pipe.size * per_rank
    if tensor:
        shard_by_hand(model, tensor, setting.fault)
    v_shaped = name in V_SCHEDULES
    indices = (pipe.rank, count - 1 - pipe.rank) if v_shaped else range(pipe.rank, count, pipe.size)
    # All from one model, so that the tied matrix stays one tensor if a rank has the first and the last stage.
    stages = nn.ModuleList(Stage(model, index, count) for index in indices)
    pipeline_stages = [
        without_first_messages(PipelineStage(stage, index, count, torch.device("cpu"), group=pipe.group))
        for index, stage in zip(indices, stages, strict=True)
    ]
    parameters = list(stages.parameters())
    current_batch = None

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        summed = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        return divide_by_targets(setting, summed, current_batch, data.size)

    schedule = getattr(schedules, f"Schedule{name}")(
        pipeline_stages if per_rank > 1 else pipeline_stages[0],
        n_microbatches=micro_batch_count(pipe.size),
        loss_fn=loss,
        scale_grads=setting.fault == "scale_grads",
    )

    def gradients(batch: Batch) -> None:
        nonlocal current_batch
        current_batch = batch
        inputs, targets = share_along(setting, world, batch, data)
        schedule.step(
            *[inputs.contiguous() for stage in stages if stage.first],  # torch 2.11 refuses other strides
            return_outputs=False,
            target=targets if any(stage.last for stage in stages) else None,
        )
        if data.size > 1:
            all_reduce_gradients(setting, parameters, data)
        if setting.fault != "table_not_summed":
            add_table_gradients(model, stages, pipe)
        if clip and setting.fault == "own_norm":
            clip_grad_norm_(parameters, clip)
        elif clip:
            clip_grads_with_norm_(parameters, clip, total_norm(stages, pipe, tensor))

    return compare_sharded(setting, stages, gradients, partial(gather_stages, pipe=pipe), clip=clip)


def micro_batch_count(ranks: int) -> int:
    """The micro-batches of a step: as many as DualPipeV needs, the schedule that needs the most."""
    return max(4, 2 * ranks)


def tied_tables(stages: Iterable[Stage]) -> list[nn.Parameter]:
    """The tied matrix on this rank: a list of one parameter on ranks with the first or last stage, empty on others."""
    tables = {id(p): p for stage in stages for name, p in stage.named_parameters() if name in (TABLE, COPY)}
    return list(tables.values())


def add_table_gradients(model: MiniGPT, stages: Iterable[Stage], pipe: Axis) -> None:
    """Sum the gradients that the first and the last stage have of the tied matrix (collective)."""
    tables = tied_tables(stages)
    gradient = tables[0].grad if tables else torch.zeros_like(model.token_embedding.weight)
    dist.all_reduce(gradient, group=pipe.group)  # the other ranks add zeros


def total_norm(stages: Iterable[Stage], pipe: Axis, tensor: Axis | None) -> Tensor:
    """The norm of the whole model's gradient (collective). The tied matrix counts once."""
    square = sum(squared_norm(stage, tensor, skip=COPY) for stage in stages)
    dist.all_reduce(square, group=pipe.group)
    return square.sqrt()


def gather_stages(stages: Iterable[Stage], pipe: Axis) -> Weights:
    """The weights of all stages under MiniGPT's names (collective). A rank's own copy of the tied matrix is used."""
    own = {
        TABLE if name == COPY else name: weight for stage in stages for name, weight in gathered_weights(stage).items()
    }
    merged = {}
    for weights in gather_objects(own, pipe.group):
        merged |= weights
    return merged | own


def fits(setting: Setting, ranks: int, per_rank: int, replicas: int = 1) -> Setting:
    """Make layers divide over the stages, and windows over the micro-batches of all replicas."""
    windows = up_to_multiple(setting.windows, micro_batch_count(ranks) * replicas)
    return replace(setting, layers=up_to_multiple(setting.layers, ranks * per_rank), windows=windows)


def rung(name: str, per_rank: int = 1, title: str = "", **options) -> Rung:
    """A rung for torch's schedule `name` with `per_rank` stages per rank."""
    run = partial(one_pipeline, name=name, per_rank=per_rank, **options)
    return Rung(title or name, "pipeline", run, REORDERED, fits=partial(fits, per_rank=per_rank))


GPIPE = rung("GPipe")
RUNGS = [
    GPIPE,
    rung("1F1B"),
    rung("1F1B", title="pipeline: clipping", clip=CLIP),
    *(rung(name, 2) for name in ("LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", *V_SCHEDULES)),
    mistake("scale_grads left on", "scale_grads", GPIPE, differs_from=1),
    mistake("table not summed", "table_not_summed", GPIPE),
]
