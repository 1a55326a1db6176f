"""The bytes that one GPU holds: weights, gradients, optimizer state, gathered layers, activations.

Where the formulas are shown: weights, gradients and optimizer in notebook 17, activations in 7b, what tensor parallel
cuts in 22, micro-batches in flight in 23, tokens per context rank in 24, experts in 30.
"""

import math
from dataclasses import dataclass

from ddp_course.plan.assumptions import COUNTED_SHARE
from ddp_course.plan.job import Model

# bytes per parameter of weights, gradients and optimizer state; bf16: gradients are accumulated in float32, and the
# optimizer holds AdamW's two averages and a float32 copy of the weights
STATE = {"bf16": (2, 4, 12), "fp32": (4, 4, 8)}
COMPUTED = {"bf16": 2, "fp32": 4}  # bytes per activation and per gathered weight
BYTES_PER_STEP = 28  # of memory traffic per parameter: AdamW reads four float32 tensors and writes three
AXES = ("pp", "dp", "shard", "cp", "tp", "ep")


@dataclass(frozen=True)
class Layout:
    """Ranks per axis, and how an optimizer step runs on them.

    ep adds no ranks: it divides the experts over that many of the dp x shard x cp ranks.
    """

    pp: int = 1
    dp: int = 1
    shard: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    zero: int = 3  # ZeRO's stage, if shard > 1: 1 divides the optimizer state, 2 gradients too, 3 weights too
    micro_batch: int = 1  # windows per micro-batch
    recompute: bool = False  # activation checkpointing of every block
    chunks: float = 1  # model chunks per pipeline rank, interleaved (23.3)
    recompute_share: float = 1 / 3  # of the computation, done twice if recompute: the forward pass is a third
    gradient_bytes: int = 4  # per gradient sent; FSDP2 sums in float32 from torch 2.15 on if reduce_dtype is None
    hides_experts: bool = False  # whether the experts' messages overlap with the computation

    @property
    def axes(self) -> tuple[int, ...]:
        """The sizes of the axes, in the order of AXES."""
        return self.pp, self.dp, self.shard, self.cp, self.tp, self.ep

    @property
    def gpus(self) -> int:
        return self.pp * self.dp * self.shard * self.cp * self.tp

    @property
    def shards(self) -> int:
        """The ranks over which ZeRO shards: shard x cp, as all cp ranks have the same weights (26.2)."""
        return self.shard * self.cp if self.shard > 1 else 1


def layers_per_stage(model: Model, layout: Layout) -> int:
    """The number of layers of the largest stage."""
    return math.ceil(model.layers / layout.pp)


def stage_parameters(model: Model, layout: Layout) -> tuple[float, float]:
    """The parameters of a rank of the largest stage before ZeRO shards them: (without experts, in experts)."""
    share = layers_per_stage(model, layout) / model.layers / layout.tp
    common = share * (model.layer_parameters - model.expert_parameters) + _tables(model, layout)
    return common, share * model.expert_parameters / layout.ep


def _tables(model: Model, layout: Layout) -> float:
    """The parameters of a tp rank in the tables of the largest stage, which is the first or the last one (23.4)."""
    return (model.tables if layout.pp == 1 else 1) * model.table_parameters / layout.tp


@dataclass(frozen=True)
class Memory:
    """The bytes of one GPU."""

    weights: float
    gradients: float
    optimizer: float
    gathered: float  # layers that ZeRO-3 has all-gathered
    activations: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.gathered + self.activations

    @property
    def highest(self) -> float:
        """The bytes if the formulas miss as much of them as in the worst of the measured runs."""
        return self.total / COUNTED_SHARE


def memory(
    model: Model,
    layout: Layout,
    micro_batches: int,
    precision: str = "bf16",
    state: tuple[int, int, int] | None = None,
    gathered_inputs: int = 0,
) -> Memory:
    """The peak memory of the fullest GPU.

    state: overrides STATE. gathered_inputs: of the numbers in Model.saved_per_token, those that tp does not divide.
    """
    common, experts = stage_parameters(model, layout)
    zero = layout.zero if layout.shards > 1 else 0
    state = state or STATE["fp32" if zero == 3 else precision]  # FSDP2 shards float32 weights and casts what it gathers
    copies = max(1, layout.shards // layout.ep)  # ranks that hold the same experts
    state_bytes = [
        size * (common / (layout.shards if zero >= stage else 1) + experts / (copies if zero >= stage else 1))
        for size, stage in zip(state, (3, 2, 1), strict=True)
    ]
    size, gathered = COMPUTED[precision], 0.0
    if zero == 3:  # the layer that computes, the next one, which is prefetched, and the tables in the root (17.3)
        layers, tables = layers_per_stage(model, layout), _tables(model, layout)
        layer = (common - tables + (experts if copies > 1 else 0)) / layers
        gathered = size * (tables + min(2, layers) * layer)
    return Memory(*state_bytes, gathered, _activations(model, layout, micro_batches, size, gathered_inputs))


def _activations(model: Model, layout: Layout, micro_batches: int, size: int, gathered_inputs: int) -> float:
    """The bytes saved for backward by a rank of the first or of the last stage: the larger of both."""
    tokens = layout.micro_batch * model.context / layout.cp
    layers, vector = layers_per_stage(model, layout), size * model.width * tokens  # bytes of one vector per token
    block = (model.saved_per_token - gathered_inputs) / layout.tp + gathered_inputs  # in vectors, as the next two
    saved = 1 / layout.tp if layout.recompute else block  # per layer and micro-batch in flight
    recomputed = block if layout.recompute else 0  # one block at a time
    logits = (2 * size * model.width + 4 * model.vocabulary) * tokens / layout.tp  # in float32
    in_flight = layout.pp  # micro-batches under 1F1B; an interleaved schedule keeps more (23.3)
    if layout.chunks > 1:
        in_flight += (layout.pp - 1) / layout.chunks
    first = (min(in_flight, micro_batches) * layers * saved + recomputed) * vector
    last = (layers * saved + recomputed) * vector + logits
    return max(first, last)
