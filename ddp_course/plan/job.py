"""A training job: a model, the tokens of an update, and the cluster that it runs on."""

from dataclasses import dataclass
from typing import Protocol

from ddp_course.base.errors import InputError
from ddp_course.base.hardware import GPU, GPUS
from ddp_course.plan.assumptions import KERNELS, LINK_SHARE

MOST_GPUS = 2**17  # of one job; more have not trained together so far
USABLE = 0.9  # of a GPU's memory: the rest is the CUDA context, NCCL's buffers and what the allocator cannot use
KERNELS_LIMITS = 0.001, 1.0
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
    positions: int = 0  # learned positions
    looked_up: float = 0.0  # parameters that the FLOP leave out, as they are only looked up; most reports count all
    active: float | None = None
    experts: float = 0.0
    chosen: int = 0
    expert_layers: int | None = None
    expert_bytes: float | None = None

    def __post_init__(self):
        if self.in_layers <= 0:
            raise InputError(
                f"{self.parameters:.3g} parameters are fewer than {self.tables} tables of {self.vocabulary:,} x "
                f"{self.width:,}; is --params, --width, --heads or --vocabulary another one?"
            )
        if (self.active or 0) > self.parameters or self.experts >= self.in_layers:
            raise InputError(
                f"of {self.parameters:.3g} parameters, at most as many are active, and fewer than {self.in_layers:.3g} "
                f"(without tables) in experts; got {self.active or 0:.3g} and {self.experts:.3g}"
            )

    @property
    def key_value_heads(self) -> int:
        return round(self.key_values * self.heads)

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
        return 6 * ((self.active or self.parameters) - self.looked_up) + attention * (0.5 if self.causal else 1)

    @property
    def kept(self) -> float:
        """Numbers that a block leaves behind per token, in widths: two norms' inputs and outputs, queries, keys,
        values, attention's output, and the MLP's (7b.4)."""
        return 6 + 2 * self.key_values + PER_UNIT[self.keeps] * self.mlp


@dataclass(frozen=True)
class Cluster:
    """Nodes of GPUs. memory: bytes of a GPU. link: of one network card, in bytes per second."""

    gpus: int
    memory: float
    link: float
    gpu: GPU = GPUS["H100"]
    per_node: int = 8
    cards: int | None = None  # network cards per node; one per GPU by default
    kernels: float = KERNELS
    link_share: float = LINK_SHARE  # of the links' speed, as messages reach it

    def __post_init__(self):
        gpus, node = self.gpus, self.per_node
        if not 1 <= gpus <= MOST_GPUS:
            raise InputError(f"--gpus is from 1 to {MOST_GPUS:,}, got {gpus:,}")
        if node < 1:
            raise InputError(f"GPUs per node are at least 1, got {node:,}")
        if gpus > node and gpus % node:
            below = gpus // node * node
            raise InputError(
                f"{gpus} GPUs do not fill nodes of {node}; take {below} or {below + node}, or another --gpus-per-node"
            )
        if self.cards is not None and not 1 <= self.cards <= node:
            raise InputError(f"a node with {node} GPUs has 1 to {node} network cards, got {self.cards}")
        least, most = KERNELS_LIMITS
        if not least <= self.kernels <= most:
            raise InputError(f"--kernels is a share of the peak above 0, from {least:g} to 1, got {self.kernels:g}")


class Runs(Protocol):
    """The properties of a trainer that decide which meshes fit: see `trainers.Trainer`."""

    state: tuple[int, int, int] | None

    def cannot(self, job: "Job", layout) -> str: ...


@dataclass(frozen=True)
class Job:
    """tokens: per update, of all GPUs. trainer: if only what this one can run is asked for."""

    model: Model
    cluster: Cluster
    tokens: int
    precision: str = "bf16"
    trainer: Runs | None = None
    measured: str = ""  # where the speed of the kernels is from, if not assumed

    def __post_init__(self):
        if self.tokens < self.model.context or self.tokens % self.model.context:
            raise InputError(
                f"tokens per update are whole windows of {self.model.context:,} tokens, got {self.tokens:,}"
            )

    @property
    def windows(self) -> int:
        return self.tokens // self.model.context

    @property
    def limit(self) -> float:
        return USABLE * self.cluster.memory
