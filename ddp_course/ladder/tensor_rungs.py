"""Rungs about tensor parallelism: layers sharded over the ranks, which all read the whole batch. Notebook 22."""

import re
from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed.tensor.parallel as tp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_

from ddp_course.distributed.process_group import World
from ddp_course.ladder.axes import SHARDED_SUMS, all_ranks, compare_sharded, with_heads, with_tokens
from ddp_course.ladder.batch_rungs import CLIP
from ddp_course.ladder.comparison import Comparison, Rung, Weights, mistake, weights
from ddp_course.ladder.models import build_minigpt
from ddp_course.ladder.setting import Batch, Setting, target_count
from ddp_course.ladder.sharded_layers import gathered_weights, shard_by_hand, squared_norm
from ddp_course.models.minigpt import Attention, MiniGPT

REPLICATED = Replicate()


def by_hand(setting: Setting, world: World, clip: float | None = None) -> Comparison:
    """The course's column- and row-parallel layers. clip: the limit of the whole model's gradient norm, if any."""
    axis = all_ranks(world)
    model = shard_by_hand(build_minigpt(setting), axis, setting.fault)

    def gradients(batch: Batch) -> None:
        (model(*batch) / target_count(batch)).backward()
        if clip and setting.fault == "own_norm":
            clip_grad_norm_(model.parameters(), clip)
        elif clip:
            clip_grads_with_norm_(model.parameters(), clip, squared_norm(model, axis).sqrt())

    return compare_sharded(setting, model, gradients, gathered_weights, clip=clip)


class SplitAttention(nn.Module):
    """Attention with separate layers for query, key and value, as torch's plan needs them."""

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


def fused_weights(model: nn.Module) -> Weights:
    """`weights`, with queries, keys and values concatenated under the name of MiniGPT's fused layer."""
    split = weights(model)
    split.pop("output.weight", None)  # there if it is not tied; the embedding is compared
    whole = {}
    for name, tensor in split.items():  # query, key and value follow each other
        fused = re.sub(r"\.(query|key|value)\.", ".query_key_value.", name)
        whole[fused] = torch.cat([whole[fused], tensor]) if fused in whole else tensor
    return whole


def plan_of_block(between: Placement = REPLICATED) -> dict:
    """torch's plan for a block. between: the placement of the residual stream between the layers."""
    plan = {f"attention.{name}": tp.ColwiseParallel() for name in ("query", "key", "value")} | {
        "attention": tp.PrepareModuleInput(input_layouts=(between, None), desired_input_layouts=(REPLICATED, None)),
        "attention.projection": tp.RowwiseParallel(output_layouts=between),
        "expand": tp.ColwiseParallel(input_layouts=between),
        "projection": tp.RowwiseParallel(output_layouts=between),
    }
    if between != REPLICATED:
        plan |= dict.fromkeys(("attention_norm", "mlp_norm"), tp.SequenceParallel())
    return plan


def plan_of_vocabulary(between: Placement = REPLICATED) -> dict:
    """torch's plan for embedding and output, sharded over the vocabulary: no rank has all logits."""
    output = tp.ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False)
    return {"token_embedding": tp.RowwiseParallel(input_layouts=REPLICATED, output_layouts=between), "output": output}


SEQUENCE_PLAN = {
    "position_embedding": tp.RowwiseParallel(input_layouts=REPLICATED, output_layouts=Shard(0)),
    "final_norm": tp.SequenceParallel(),
}


def shard_by_torch(setting: Setting, mesh: DeviceMesh, block_plan: dict, rest_plan: dict | None = None) -> MiniGPT:
    """The setting's MiniGPT, sharded by torch's plans for each block and, if given, for the rest."""
    model = build_minigpt(setting)
    for block in model.blocks:
        block.attention = SplitAttention(block.attention)
        tp.parallelize_module(block, mesh, block_plan)
    tp.parallelize_module(model, mesh, rest_plan or {})
    if rest_plan and setting.fault != "not_tied":
        model.output.weight = model.token_embedding.weight  # parallelize_module has untied them
    return model


def by_torch(setting: Setting, world: World, block_plan: dict, rest_plan: dict | None = None) -> Comparison:
    """MiniGPT sharded by torch's plans, see `shard_by_torch`. With `rest_plan` the loss is that of sharded logits."""
    model = shard_by_torch(setting, init_device_mesh("cpu", (world.size,)), block_plan, rest_plan)

    def gradients(batch: Batch) -> None:
        inputs, targets = batch
        with tp.loss_parallel() if rest_plan else nullcontext():
            loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum")
            (loss / target_count(batch)).backward()

    return compare_sharded(setting, model, gradients, fused_weights)


def plain(setting: Setting, world: World) -> Comparison:
    """torch's parallelize_module on attention and MLP."""
    return by_torch(setting, world, plan_of_block())


def vocabulary(setting: Setting, world: World) -> Comparison:
    """The tied matrix is sharded as well, and the loss is computed from sharded logits."""
    return by_torch(setting, world, plan_of_block(), plan_of_vocabulary())


def sequence(setting: Setting, world: World) -> Comparison:
    """Sequence parallel: between the layers each rank has some of the tokens, also in the norms."""
    token_shards = Shard(1)
    rest_plan = plan_of_vocabulary(token_shards) | SEQUENCE_PLAN
    return by_torch(setting, world, plan_of_block(token_shards), rest_plan)


TOPIC = "tensor"
BY_HAND = Rung("tensor: by hand", TOPIC, by_hand, SHARDED_SUMS, fits=with_heads)
CLIPPED = Rung("tensor: clipping", TOPIC, partial(by_hand, clip=CLIP), SHARDED_SUMS, fits=with_heads)
VOCABULARY = Rung("tensor: vocabulary", TOPIC, vocabulary, SHARDED_SUMS, fits=with_heads)
RUNGS = [
    BY_HAND,
    CLIPPED,
    Rung("tensor: torch", TOPIC, plain, SHARDED_SUMS, fits=with_heads),
    VOCABULARY,
    Rung("tensor: sequence", TOPIC, sequence, SHARDED_SUMS, fits=with_tokens),
    mistake("fused QKV cut as one", "fused_as_one", BY_HAND),
    mistake("no backward all-reduce", "no_backward_sum", BY_HAND),
    mistake("bias in each part", "bias_in_each_part", BY_HAND),
    mistake("clip by the own norm", "own_norm", CLIPPED),
    mistake("tie not restored", "not_tied", VOCABULARY, differs_from=1),
]
