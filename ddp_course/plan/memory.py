"""Bytes that one GPU holds, line by line: weights, gradients, optimizer, gathered layers, activations.

Where the formulas are shown: weights, gradients and optimizer in notebook 17, activations in 7b, what tensor parallel
cuts in 22, micro-batches in flight in 23, tokens per context rank in 24, experts in 30.
"""

import math
from dataclasses import dataclass

from ddp_course.plan.assumptions import COUNTED_SHARE
from ddp_course.plan.job import Model

# bytes per parameter of weights, gradients and optimizer; bf16: its gradients are added up in float32, and the
# optimizer has a float32 copy of the weights besides AdamW's two averages
STATE = {"bf16": (2, 4, 12), "fp32": (4, 4, 8)}
COMPUTED = {"bf16": 2, "fp32": 4}  # bytes of an activation and of a gathered weight
BYTES_PER_STEP = 28  # per parameter: AdamW reads four float32 tensors and writes three
AXES = ("pp", "dp", "shard", "cp", "tp", "ep")


@dataclass(frozen=True)
class Layout:
    """Ranks per axis, and how an optimizer step runs on them. ep: the data ranks over which experts are divided."""

    pp: int = 1
    dp: int = 1
    shard: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    zero: int = 3  # what `shard` divides: 1 the optimizer, 2 gradients too, 3 weights too
    micro_batch: int = 1  # windows
    recompute: bool = False  # activation checkpointing of every block
    chunks: float = 1  # parts of the model per pipeline rank, interleaved (23.3)
    recomputed: float = 1 / 3  # share of the computation that checkpointing does again: the forward pass
    gradient_bytes: int = 4  # as sent: summed in float32, as FSDP2 does from torch 2.15 on if reduce_dtype is None
    hides_experts: bool = False  # whether the experts' messages travel behind the computation

    @property
    def axes(self) -> tuple[int, ...]:
        return tuple(getattr(self, axis) for axis in AXES)

    @property
    def gpus(self) -> int:
        return self.pp * self.dp * self.shard * self.cp * self.tp

    @property
    def shards(self) -> int:
        """Ranks that share a weight's storage: cp's ranks have the same weights and share them too (26.2)."""
        return self.shard * self.cp if self.shard > 1 else 1


def layers_here(model: Model, layout: Layout) -> int:
    """The number of layers of the fullest stage."""
    return math.ceil(model.layers / layout.pp)


def stage_parameters(model: Model, layout: Layout) -> tuple[float, float]:
    """Before they are sharded: what every data rank has, and experts, of the fullest stage."""
    each = layers_here(model, layout) / model.layers / layout.tp
    ends = _tables(model, layout)
    return each * (model.in_layers - model.experts) + ends, each * model.experts / layout.ep


def _tables(model: Model, layout: Layout) -> float:
    """Parameters in the tables of the fullest stage: the first or the last one (23.4)."""
    return (model.tables if layout.pp == 1 else 1) * model.table / layout.tp


@dataclass(frozen=True)
class Memory:
    """In bytes."""

    weights: float
    gradients: float
    optimizer: float
    gathered: float  # layers that are whole at the moment, of ZeRO-3
    activations: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.gathered + self.activations

    @property
    def highest(self) -> float:
        """If a trainer holds as much more than is counted as the one measured that held most."""
        return self.total / COUNTED_SHARE


def memory(
    model: Model,
    layout: Layout,
    micro_batches: int,
    precision: str = "bf16",
    state: tuple[int, int, int] | None = None,
    whole_inputs: int = 0,
) -> Memory:
    """The peak memory of the fullest GPU. state: bytes as in STATE, of a trainer that differs. whole_inputs: of what a
    block keeps, per token and unit, what tp does not divide."""
    common, experts = stage_parameters(model, layout)
    zero = layout.zero if layout.shards > 1 else 0
    state = state or STATE["fp32" if zero == 3 else precision]  # FSDP2 shards float32 weights and casts what it gathers
    copies = max(1, layout.shards // layout.ep)  # ranks that hold the same experts
    lasting = [
        size * (common / (layout.shards if zero >= stage else 1) + experts / (copies if zero >= stage else 1))
        for size, stage in zip(state, (3, 2, 1), strict=True)
    ]
    size, gathered = COMPUTED[precision], 0.0
    if zero == 3:  # one layer computes, the next one is on its way; the root stays (17.3)
        layers, ends = layers_here(model, layout), _tables(model, layout)
        layer = (common - ends + (experts if copies > 1 else 0)) / layers
        gathered = size * (ends + min(2, layers) * layer)
    return Memory(*lasting, gathered, _activations(model, layout, micro_batches, size, whole_inputs))


def _activations(model: Model, layout: Layout, micro_batches: int, size: int, whole_inputs: int) -> float:
    tokens = layout.micro_batch * model.context / layout.cp
    of_block = (model.kept - whole_inputs) / layout.tp + whole_inputs
    layers, kept = layers_here(model, layout), 1 / layout.tp if layout.recompute else of_block
    again = of_block if layout.recompute else 0  # the block that is computed again
    block = size * model.width * tokens
    logits = (2 * size * model.width + 4 * model.vocabulary) * tokens / layout.tp  # in float32
    in_flight = layout.pp  # of 1F1B; interleaved ones keep more (23.3)
    if layout.chunks > 1:
        in_flight += (layout.pp - 1) / layout.chunks
    first = (min(in_flight, micro_batches) * layers * kept + again) * block
    last = (layers * kept + again) * block + logits
    return max(first, last)
