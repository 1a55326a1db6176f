"""Rungs about pipelines: each rank has some of the layers, and micro-batches go through them. Notebook 23."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from ddp_course.distributed.mesh import Axis
from ddp_course.distributed.process_group import World
from ddp_course.distributed.tensor_parallel import placements_of
from ddp_course.ladder.axes import add_gradients, all_ranks, divided, share_along, up_to_multiple, updates
from ddp_course.ladder.batch_rungs import CLIP
from ddp_course.ladder.comparison import Comparison, Rung, Weights, alone, batches, mistake
from ddp_course.ladder.cut_layers import cut_by_hand
from ddp_course.ladder.cut_layers import gathered as joined
from ddp_course.ladder.setting import Batch, Setting
from ddp_course.ladder.subjects import build_minigpt
from ddp_course.ladder.tolerance import REORDERED, reordered
from ddp_course.models.minigpt import MiniGPT

THERE_AND_BACK = ("ZBVZeroBubble", "DualPipeV")  # rank 0 has the first and the last stage
TABLE, COPY = "token_embedding.weight", "output.weight"  # one tied matrix, held by the first and by the last stage


class Stage(nn.Module):
    """Stage `index` of `stages`: its share of the blocks; the first one also embeds, the last one computes logits."""

    def __init__(self, model: MiniGPT, index: int, stages: int) -> None:
        super().__init__()
        layers = len(model.blocks)
        own = range(layers * index // stages, layers * (index + 1) // stages)
        self.blocks = nn.ModuleDict({str(number): model.blocks[number] for number in own})
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


def scheduled(setting: Setting, world: World, name: str, per_rank: int, clip: float | None = None) -> Comparison:
    """All ranks are one pipeline."""
    joint, pipe = batches(setting), all_ranks(world)
    several = train(setting, world, joint, pipe, Axis(1, 0, pipe.group), name, per_rank, clip)
    return Comparison(several, alone(build_minigpt(setting), joint, clip=clip))


def train(
    setting: Setting,
    world: World,
    joint: Iterable[Batch],
    pipe: Axis,
    data: Axis,
    name: str,
    per_rank: int,
    clip: float | None = None,
    tensor: Axis | None = None,
) -> list[Weights]:
    """Replicas along `data`, each of them a pipeline along `pipe` under torch's schedule of that name.

    tensor: the ranks over which the layers of each stage are cut, if they are.
    """
    model, count = build_minigpt(setting), pipe.size * per_rank
    if tensor:
        cut_by_hand(model, tensor, setting.fault)
    back = name in THERE_AND_BACK
    indices = (pipe.rank, count - 1 - pipe.rank) if back else range(pipe.rank, count, pipe.size)
    stages = {index: Stage(model, index, count) for index in indices}  # of one model: both ends on a rank stay tied
    piped = [
        PipelineStage(stage, index, count, torch.device("cpu"), group=pipe.group) for index, stage in stages.items()
    ]
    parameters = list(nn.ModuleList(stages.values()).parameters())
    batch_now = []

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        summed = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        return divided(setting, summed, batch_now[0], data.size)

    schedule = getattr(schedules, f"Schedule{name}")(
        piped if per_rank > 1 else piped[0],
        n_microbatches=micro_batches(pipe.size),
        loss_fn=loss,
        scale_grads=setting.fault == "scale_grads",
    )

    def gradients(batch: Batch) -> None:
        batch_now[:] = [batch]
        inputs, targets = share_along(setting, world, batch, data)
        schedule.step(
            *[inputs for stage in stages.values() if stage.first],
            return_outputs=False,
            target=targets if any(stage.last for stage in stages.values()) else None,
        )
        if data.size > 1:
            add_gradients(setting, parameters, data)
        if setting.fault != "table_not_summed":
            add_table_gradients(model, stages.values(), pipe)
        if clip and setting.fault == "own_norm":
            clip_grads_with_norm_(parameters, clip, get_total_norm([parameter.grad for parameter in parameters]))
        elif clip:
            clip_grads_with_norm_(parameters, clip, total_norm(stages.values(), pipe, tensor))

    return updates(joint, parameters, gradients, lambda: gathered(stages.values(), pipe, tensor))


def micro_batches(ranks: int) -> int:
    """As many as the schedule that needs most of them, DualPipeV, wants."""
    return max(4, 2 * ranks)


def tables(stages: Iterable[Stage]) -> list[nn.Parameter]:
    """This rank's copy of the tied table: none on a rank in the middle, one if it has an end, or both ends."""
    own = {id(p): p for stage in stages for name, p in stage.named_parameters() if name in (TABLE, COPY)}
    return list(own.values())


def add_table_gradients(model: MiniGPT, stages: Iterable[Stage], pipe: Axis) -> None:
    """The copies of the tied table, on the first and on the last stage, take the sum of both gradients."""
    copies = tables(stages)
    both = copies[0].grad if copies else torch.zeros_like(model.token_embedding.weight)
    dist.all_reduce(both, group=pipe.group)  # one rank that has both ends: adds nothing to it


def total_norm(stages: Iterable[Stage], pipe: Axis, tensor: Axis | None) -> Tensor:
    """The norm of the whole model's gradient: squares are added over the stages, those of the table once, and those of
    cut weights over the ranks that have the other parts."""
    squares = torch.zeros(2, dtype=torch.float64)  # of whole weights, of cut ones
    for stage in stages:
        placements = placements_of(stage)
        for name, parameter in stage.named_parameters():
            squares[int(name in placements)] += parameter.grad.square().sum() * (name != COPY)
    if tensor:
        dist.all_reduce(squares[1], group=tensor.group)
    square = squares.sum()
    dist.all_reduce(square, group=pipe.group)
    return square.sqrt()


def gathered(stages: Iterable[Stage], pipe: Axis, tensor: Axis | None) -> Weights:
    """The weights of all stages under MiniGPT's names (collective). A rank with a copy of the table shows its own."""
    own = {
        TABLE if name == COPY else name: weight
        for stage in stages
        for name, weight in joined(stage, tensor or Axis(1, 0, pipe.group)).items()
    }
    every: list[Weights] = [{}] * pipe.size
    dist.all_gather_object(every, own, group=pipe.group)
    merged = {}
    for weights in every:
        merged |= weights
    return merged | own


def fits(setting: Setting, ranks: int, per_rank: int, replicas: int = 1) -> Setting:
    """Layers that divide into stages, and windows that divide into the micro-batches of each replica."""
    windows = up_to_multiple(setting.windows, micro_batches(ranks) * replicas)
    return replace(setting, layers=up_to_multiple(setting.layers, ranks * per_rank), windows=windows)


def rung(name: str, per_rank: int = 1, title: str = "", **options) -> Rung:
    """The schedule of torch of this name, with so many stages per rank."""
    run = partial(scheduled, name=name, per_rank=per_rank, **options)
    return Rung(title or name, "pipeline", run, reordered, REORDERED, fits=partial(fits, per_rank=per_rank))


GPIPE = rung("GPipe")
RUNGS = [
    GPIPE,
    rung("1F1B"),
    rung("1F1B", title="pipeline: clipping", clip=CLIP),
    *(rung(name, 2) for name in ("LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", *THERE_AND_BACK)),
    mistake(
        "scale_grads left on",
        "scale_grads",
        GPIPE,
        "the schedule divides by the number of micro-batches what the loss has already divided by the tokens",
        differs_from=1,
    ),
    mistake(
        "table not summed",
        "table_not_summed",
        GPIPE,
        "the first and the last stage each have a copy of the tied table, and a part of its gradient",
    ),
]
