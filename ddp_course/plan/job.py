"""A training job: a model, the tokens per optimizer step, and the cluster that it runs on."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddp_course.base.errors import InputError
from ddp_course.base.hardware import GPU, GPUS
from ddp_course.plan.assumptions import KERNELS, LINK_SHARE

if TYPE_CHECKING:
    from ddp_course.plan.trainers import Trainer

MOST_GPUS = 2**17  # per job; more have not trained together so far
USABLE = 0.9  # share of a GPU's memory: CUDA context, NCCL's buffers and fragmentation take the rest
KERNELS_LIMITS = 0.001, 1.0  # of Cluster.kernels
# Numbers that an MLP saves for backward, per token and unit of its inner layer. plain: before and after the GELU.
# gated (SwiGLU): four. fused: a gated MLP whose kernel recomputes one of the four.
SAVED_PER_UNIT = {"plain": 2, "gated": 4, "fused": 3}


@dataclass(frozen=True)
class Model:
    """The sizes of a decoder-only transformer.

    The last five fields describe a mixture of experts:

    active             parameters that one token uses; None for a dense model
    expert_parameters  parameters in routed experts, of all layers together
    experts_per_token  experts that each token is sent to (nodes, if a token is sent once per node)
    expert_layers      layers with experts; None: all
    expert_bytes       bytes per number sent to and from experts; None: those of the precision
    """

    parameters: float
    layers: int
    width: int
    heads: int
    context: int
    vocabulary: int = 128_000
    tables: int = 2  # token embedding and output layer; 1 if they are one tensor
    key_value_ratio: float = 1.0  # heads of keys and values / heads of queries
    mlp_ratio: float = 4.0  # units of an MLP's inner layer / width
    keeps: str = "plain"  # the kind of MLP: a key of SAVED_PER_UNIT
    attention_width: float | None = None  # heads x size of a head; None: the width
    causal: bool = False  # whether flops_per_token leaves out what the causal mask hides
    positions: int = 0  # learned position embeddings
    lookup_parameters: float = 0.0  # in embeddings, left out of flops_per_token; 0 counts all, as most reports do
    active: float | None = None
    expert_parameters: float = 0.0
    experts_per_token: int = 0
    expert_layers: int | None = None
    expert_bytes: float | None = None

    def __post_init__(self):
        if self.layer_parameters <= 0:
            raise InputError(
                f"{self.parameters:.3g} parameters are fewer than {self.tables} tables of {self.vocabulary:,} x "
                f"{self.width:,}; is --params, --width, --heads or --vocabulary another one?"
            )
        if (self.active or 0) > self.parameters or self.expert_parameters >= self.layer_parameters:
            raise InputError(
                f"of {self.parameters:.3g} parameters, at most as many are active, and fewer than "
                f"{self.layer_parameters:.3g} (without tables) in experts; got {self.active or 0:.3g} and "
                f"{self.expert_parameters:.3g}"
            )

    @property
    def key_value_heads(self) -> int:
        return round(self.key_value_ratio * self.heads)

    @property
    def table_parameters(self) -> float:
        """Parameters of one table."""
        return float(self.vocabulary * self.width)

    @property
    def layer_parameters(self) -> float:
        """Parameters of all layers, without the tables."""
        return self.parameters - self.tables * self.table_parameters

    @property
    def flops_per_token(self) -> float:
        """FLOP of forward and backward, as PaLM's appendix B counts them.

        6 per parameter, and 12 per layer, unit of the attention width and token of the context.
        """
        attention = 12 * self.layers * (self.attention_width or self.width) * self.context
        return 6 * ((self.active or self.parameters) - self.lookup_parameters) + attention * (0.5 if self.causal else 1)

    @property
    def saved_per_token(self) -> float:
        """Numbers that a block saves for backward per token, divided by the width (7b.1).

        They are two norms' inputs and outputs, queries, keys, values, attention's output, and those of the MLP.
        """
        return 6 + 2 * self.key_value_ratio + SAVED_PER_UNIT[self.keeps] * self.mlp_ratio


@dataclass(frozen=True)
class Cluster:
    """Nodes of GPUs. memory: bytes per GPU. link: bytes per second of one network card."""

    gpus: int
    memory: float
    link: float
    gpu: GPU = GPUS["H100"]
    per_node: int = 8
    cards: int | None = None  # network cards per node; one per GPU by default
    kernels: float = KERNELS  # share of the peak FLOP/s that kernels reach
    link_share: float = LINK_SHARE  # share of the links' speed that messages reach

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


@dataclass(frozen=True)
class Job:
    """A model to train on a cluster.

    tokens: per optimizer step, over all GPUs. trainer: admits only the meshes that it can run; None admits all.
    """

    model: Model
    cluster: Cluster
    tokens: int
    precision: str = "bf16"
    trainer: "Trainer | None" = None
    measured: str = ""  # a sentence on the step that calibrated cluster.kernels; empty: they are assumed

    def __post_init__(self) -> None:
        """Raise InputError unless a step has whole windows: in a notebook no flag was checked before."""
        if self.tokens < self.model.context or self.tokens % self.model.context:
            raise InputError(
                f"tokens per update are whole windows of {self.model.context:,} tokens, got {self.tokens:,}"
            )

    @property
    def windows(self) -> int:
        """Windows per optimizer step, over all GPUs."""
        return self.tokens // self.model.context

    @property
    def limit(self) -> float:
        """Usable bytes per GPU."""
        return USABLE * self.cluster.memory
