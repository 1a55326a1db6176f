"""Bytes that one GPU holds, line by line: weights, gradients, optimizer, gathered layers, activations.

Where the formulas are shown: weights, gradients and optimizer in notebook 17, activations in 7b, what tensor parallel
cuts in 22, micro-batches in flight in 23, tokens per context rank and experts in 24.
"""

import math
from dataclasses import dataclass
from functools import cached_property

from ddp_course.base.errors import InputError

# bytes per parameter of weights, gradients and optimizer; bf16: its gradients are added up in float32, and the
# optimizer has a float32 copy of the weights besides AdamW's two averages
STATE = {"bf16": (2, 4, 12), "fp32": (4, 4, 8)}
COMPUTED = {"bf16": 2, "fp32": 4}  # bytes of an activation and of a gathered weight
# numbers that an MLP keeps per unit of its inner layer: before and after the GELU; gated (Llama) four, or three if its
# kernel computes one of them again
PER_UNIT = {"plain": 2, "gated": 4, "fused": 3}


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer. A mixture of experts: `active` is what a token meets of the parameters, `experts` how
    many of them lie in experts that are chosen, `chosen` to how many experts a token goes (or nodes, if it is sent once
    per node), in `expert_layers` of the layers, in `expert_bytes` per number if not in those of the precision."""

    parameters: float
    layers: int
    width: int
    heads: int
    context: int
    vocabulary: int = 128_000
    tables: int = 2  # token embedding and output layer; 1 if they are one tensor
    key_values: float = 1.0  # heads of keys and values over those of queries
    mlp: float = 4.0  # units of an MLP's inner layer, in widths
    keeps: str = "plain"  # a key of PER_UNIT
    attention: float | None = None  # heads times their size, if that is not the width
    causal: bool = False  # whether the FLOP leave out what the causal mask hides
    active: float | None = None
    experts: float = 0.0
    chosen: int = 0
    expert_layers: int | None = None
    expert_bytes: float | None = None

    def __post_init__(self):
        if self.in_layers <= 0:
            raise InputError(
                f"{self.parameters:.3g} parameters are fewer than {self.tables} tables of "
                f"{self.vocabulary:,} x {self.width:,}; is --params, --width, --heads or "
                "--vocabulary another one?"
            )
        if (self.active or 0) > self.parameters or self.experts >= self.in_layers:
            raise InputError(
                f"of {self.parameters:.3g} parameters, at most as many are active, and fewer than "
                f"{self.in_layers:.3g} (without tables) in experts; got {self.active or 0:.3g} and "
                f"{self.experts:.3g}"
            )

    @property
    def table(self) -> float:
        return float(self.vocabulary * self.width)

    @property
    def in_layers(self) -> float:
        return self.parameters - self.tables * self.table

    @property
    def flops_per_token(self) -> float:
        """Forward and backward, as PaLM's appendix B counts: 6 per parameter, 12 per layer, unit and token."""
        attention = 12 * self.layers * (self.attention or self.width) * self.context
        return 6 * (self.active or self.parameters) + attention * (0.5 if self.causal else 1)

    @property
    def kept(self) -> float:
        """Numbers that a block leaves behind per token, in widths: two norms' inputs and outputs, queries, keys,
        values, attention's output, and the MLP's (7b.4)."""
        return 6 + 2 * self.key_values + PER_UNIT[self.keeps] * self.mlp


@dataclass(frozen=True)
class Layout:
    """Ranks per axis, as parallel_ddp.py's flags, and how an update runs on them. ep: experts over the data ranks."""

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
    gradient_bytes: int = 4  # as they are sent: summed in float32
    hides_experts: bool = False  # whether the experts' messages travel behind the computation

    @property
    def gpus(self) -> int:
        return self.pp * self.dp * self.shard * self.cp * self.tp

    @property
    def shards(self) -> int:
        """Ranks that share a weight's storage: cp's ranks have the same weights and share them too (26.2)."""
        return self.shard * self.cp if self.shard > 1 else 1


def layers_here(model: Model, layout: Layout) -> int:
    """Of the fullest stage."""
    return math.ceil(model.layers / layout.pp)


def stage_parameters(model: Model, layout: Layout) -> tuple[float, float]:
    """Before they are sharded: what every data rank has, and experts, of the fullest stage."""
    each = layers_here(model, layout) / model.layers / layout.tp
    ends = (model.tables if layout.pp == 1 else 1) * model.table / layout.tp  # 23.4: the first and the last stage
    return each * (model.in_layers - model.experts) + ends, each * model.experts / layout.ep


@dataclass(frozen=True)
class Memory:
    """In bytes."""

    weights: float
    gradients: float
    optimizer: float
    gathered: float  # layers that are whole at the moment, of ZeRO-3
    activations: float

    @cached_property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.gathered + self.activations


def memory(model: Model, layout: Layout, micro_batches: int, precision: str = "bf16", state=None) -> Memory:
    """What the fullest GPU holds when it holds most. state: bytes as in STATE, of a trainer that differs."""
    common, experts = stage_parameters(model, layout)
    zero = layout.zero if layout.shards > 1 else 0
    state = state or STATE["fp32" if zero == 3 else precision]  # FSDP2 shards float32 weights and casts what it gathers
    copies = max(1, layout.shards // layout.ep)  # ranks that hold the same experts
    held = [
        size * (common / (layout.shards if zero >= stage else 1) + experts / (copies if zero >= stage else 1))
        for size, stage in zip(state, (3, 2, 1), strict=True)
    ]
    size, gathered = COMPUTED[precision], 0.0
    if zero == 3:  # one layer computes, the next one is on its way; the root stays (17.3)
        layers, ends = layers_here(model, layout), (model.tables if layout.pp == 1 else 1) * model.table / layout.tp
        layer = (common - ends + (experts if copies > 1 else 0)) / layers
        gathered = size * (ends + min(2, layers) * layer)
    return Memory(*held, gathered, _activations(model, layout, micro_batches, size))


def _activations(model: Model, layout: Layout, micro_batches: int, size: int) -> float:
    tokens = layout.micro_batch * model.context / layout.cp
    layers, kept = layers_here(model, layout), 1 if layout.recompute else model.kept
    again = model.kept if layout.recompute else 0  # the block that is computed again
    block = size * model.width * tokens / layout.tp  # with sequence parallel (22.3)
    logits = (2 * size * model.width + 4 * model.vocabulary) * tokens / layout.tp  # in float32
    in_flight = layout.pp  # of 1F1B; interleaved ones keep more (23.3)
    if layout.chunks > 1:
        in_flight += (layout.pp - 1) / layout.chunks
    first = (min(in_flight, micro_batches) * layers * kept + again) * block
    last = (layers * kept + again) * block + logits
    return max(first, last)
