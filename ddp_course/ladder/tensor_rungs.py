"""Rungs about tensor parallelism: layers cut over the ranks, which all see the whole batch. Notebook 22."""

import re
from contextlib import nullcontext

import torch
import torch.distributed.tensor.parallel as tp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_

from ddp_course.distributed.process_group import World
from ddp_course.ladder.axes import CUT, all_ranks, updates, with_heads, with_tokens
from ddp_course.ladder.batch_rungs import CLIP
from ddp_course.ladder.comparison import Comparison, Rung, Weights, alone, batches, mistake, weights
from ddp_course.ladder.cut_layers import cut_by_hand, gathered, total_norm
from ddp_course.ladder.setting import Batch, Setting, target_count
from ddp_course.ladder.subjects import build_minigpt
from ddp_course.ladder.tolerance import reordered
from ddp_course.models.minigpt import Attention, MiniGPT

WHOLE = Replicate()


def by_hand(setting: Setting, world: World, clip: float | None = None) -> Comparison:
    """Column- and row-parallel layers with their two all-reduces."""
    joint, axis = batches(setting), all_ranks(world)
    model = cut_by_hand(build_minigpt(setting), axis, setting.fault)

    def gradients(batch: Batch) -> None:
        (model(*batch) / target_count(batch)).backward()
        if clip and setting.fault == "own_norm":
            clip_grad_norm_(model.parameters(), clip)
        elif clip:
            clip_grads_with_norm_(model.parameters(), clip, total_norm(model, axis))

    several = updates(joint, model.parameters(), gradients, lambda: gathered(model, axis))
    return Comparison(several, alone(build_minigpt(setting), joint, clip=clip))


def by_hand_clipped(setting: Setting, world: World) -> Comparison:
    """The norm is that of the whole model: cut weights are added over the ranks, whole ones count once."""
    return by_hand(setting, world, CLIP)


class SplitAttention(nn.Module):
    """Query, key and value as layers of their own, as torch's plan wants them."""

    def __init__(self, whole: Attention) -> None:
        super().__init__()
        width = whole.projection.in_features
        self.size, self.projection = width // whole.heads, whole.projection
        parts = [tensor.detach().chunk(3) for tensor in (whole.query_key_value.weight, whole.query_key_value.bias)]
        for name, weight, bias in zip(("query", "key", "value"), *parts, strict=True):
            layer = nn.Linear(width, width)
            layer.weight, layer.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())
            setattr(self, name, layer)

    def forward(self, x: Tensor, past: None = None) -> Tensor:
        parts = [layer(x).unflatten(-1, (-1, self.size)) for layer in (self.query, self.key, self.value)]
        y = F.scaled_dot_product_attention(*(part.transpose(1, 2) for part in parts), is_causal=True)
        return self.projection(y.transpose(1, 2).flatten(2))


def fused_again(model: nn.Module) -> Weights:
    """`weights`, with queries, keys and values under the name of MiniGPT's fused layer."""
    split = weights(model)
    split.pop("output.weight", None)  # there if the table is not tied again: then the embedding's copy counts
    whole = {}
    for name, tensor in split.items():  # query, key and value follow each other
        fused = re.sub(r"\.(query|key|value)\.", ".query_key_value.", name)
        whole[fused] = torch.cat([whole[fused], tensor]) if fused in whole else tensor
    return whole


def plan_of_block(between: Placement = WHOLE) -> dict:
    """Which layer is cut how; `between` says how the stream lies on the ranks between the layers."""
    plan = {f"attention.{name}": tp.ColwiseParallel() for name in ("query", "key", "value")} | {
        "attention": tp.PrepareModuleInput(input_layouts=(between, None), desired_input_layouts=(WHOLE, None)),
        "attention.projection": tp.RowwiseParallel(output_layouts=between),
        "expand": tp.ColwiseParallel(input_layouts=between),
        "projection": tp.RowwiseParallel(output_layouts=between),
    }
    norms = {} if between == WHOLE else dict.fromkeys(("attention_norm", "mlp_norm"), tp.SequenceParallel())
    return plan | norms


def plan_of_vocabulary(between: Placement = WHOLE) -> dict:
    """Embedding and output cut by tokens of the vocabulary: no rank ever has all logits."""
    output = tp.ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False)
    return {"token_embedding": tp.RowwiseParallel(input_layouts=WHOLE, output_layouts=between), "output": output}


OF_SEQUENCE = {
    "position_embedding": tp.RowwiseParallel(input_layouts=WHOLE, output_layouts=Shard(0)),
    "final_norm": tp.SequenceParallel(),
}


def cut_by_torch(setting: Setting, mesh: DeviceMesh, of_block: dict, of_rest: dict | None = None) -> MiniGPT:
    """The setting's MiniGPT under torch's plans for a block and for the rest."""
    model = build_minigpt(setting)
    for block in model.blocks:
        block.attention = SplitAttention(block.attention)
        tp.parallelize_module(block, mesh, of_block)
    tp.parallelize_module(model, mesh, of_rest or {})
    if of_rest and setting.fault != "not_tied":
        model.output.weight = model.token_embedding.weight  # the plan has made two of the one table
    return model


def by_torch(setting: Setting, world: World, of_block: dict, of_rest: dict | None = None) -> Comparison:
    mesh, joint = init_device_mesh("cpu", (world.size,)), batches(setting)
    model = cut_by_torch(setting, mesh, of_block, of_rest)

    def gradients(batch: Batch) -> None:
        inputs, targets = batch
        with tp.loss_parallel() if of_rest else nullcontext():
            loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum")
            (loss / target_count(batch)).backward()

    several = updates(joint, model.parameters(), gradients, lambda: fused_again(model))
    return Comparison(several, alone(build_minigpt(setting), joint))


def plain(setting: Setting, world: World) -> Comparison:
    """torch's parallelize_module on attention and MLP."""
    return by_torch(setting, world, plan_of_block())


def vocabulary(setting: Setting, world: World) -> Comparison:
    """The tied table cut as well, and the loss computed from parts of the logits."""
    return by_torch(setting, world, plan_of_block(), plan_of_vocabulary())


def sequence(setting: Setting, world: World) -> Comparison:
    """Between the layers each rank keeps a part of the tokens; the norms work on those."""
    part = Shard(1)
    return by_torch(setting, world, plan_of_block(part), plan_of_vocabulary(part) | OF_SEQUENCE)


TOPIC = "tensor"
BY_HAND = Rung("tensor: by hand", TOPIC, by_hand, reordered, CUT, fits=with_heads)
CLIPPED = Rung("tensor: clipping", TOPIC, by_hand_clipped, reordered, CUT, fits=with_heads)
VOCABULARY = Rung("tensor: vocabulary", TOPIC, vocabulary, reordered, CUT, fits=with_heads)
RUNGS = [
    BY_HAND,
    CLIPPED,
    Rung("tensor: torch", TOPIC, plain, reordered, CUT, fits=with_heads),
    VOCABULARY,
    Rung("tensor: sequence", TOPIC, sequence, reordered, CUT, fits=with_tokens),
    mistake(
        "fused QKV cut as one",
        "fused_as_one",
        BY_HAND,
        "the fused layer has all queries, then all keys, then all values: cut as one, a rank has rows of no head",
    ),
    mistake(
        "no backward all-reduce",
        "no_backward_sum",
        BY_HAND,
        "the gradient of a column-parallel layer's input is a sum over the ranks; each goes on with its own part",
    ),
    mistake(
        "bias in each part",
        "bias_in_each_part",
        BY_HAND,
        "a bias that is added before the sum over N ranks is added N times",
    ),
    mistake(
        "clip by the own norm",
        "own_norm",
        CLIPPED,
        "the norm of what a rank holds is not that of the model, so every rank scales by another factor",
    ),
    mistake(
        "tie not restored",
        "not_tied",
        VOCABULARY,
        "parallelize_module makes two tables of one, and each gets a part of the gradient",
        differs_from=1,
    ),
]
