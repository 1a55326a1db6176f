"""A step of a model that is cut over tensor, pipeline and data ranks: what each axis adds to the computation.

Each addition is a share of the computation, so that the step is compute * (1 + bubble + tensor + data + experts). How
much of the messages a trainer hides behind computation is not known from outside: all of it, or none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ddp_course.predict import all_reduce
from ddp_course.predict.hardware import Range
from ddp_course.predict.link import Link


@dataclass(frozen=True)
class Plan:
    """A training run on `gpus` devices. Sizes in bytes and FLOP, speeds per second and device, one way."""

    name: str
    source: str
    gpus: int
    peak: float
    parameters: float  # that a token meets
    layers: int
    width: int  # of a token between layers
    attention: int  # heads times their size
    sequence: int
    tokens: float  # per update
    tensor: int = 1
    pipeline: int = 1
    data: int = 1  # ranks that read other sequences
    shards: int = 1  # of the data ranks, those that hold different parameters or experts, over faster links
    chunks: Range = Range(1, 1)  # parts of the model per pipeline rank, interleaved
    inside: float = 450e9
    between: float = 50e9
    held: float | None = None  # parameters in all, if a token does not meet them all
    gradient_bytes: float = 4
    exchanged: float = 0.0  # bytes that a token sends between nodes to the experts of all layers and back
    recomputed: float = 0.0  # share of the computation that is done again for memory's sake
    causal: bool = False  # whether the reported FLOP leave out what the causal mask hides
    reported: Mapping[str, float] = field(default_factory=dict)

    @property
    def flops_per_token(self) -> float:
        """Forward and backward, as PaLM's appendix B counts: 6 per parameter, 12 per layer, unit and token."""
        return 6 * self.parameters + 12 * self.layers * self.attention * self.sequence * (0.5 if self.causal else 1)

    @property
    def micro_batches(self) -> float:
        """Sequences that a pipeline works on per update, one at a time."""
        return self.tokens / self.sequence / self.data

    def bubble(self, chunks: float) -> float:
        """Idle over busy time of 1F1B with interleaved chunks (Narayanan et al., 2021)."""
        return (self.pipeline - 1) / (chunks * self.micro_batches)

    def compute(self, kernels: float) -> float:
        """Seconds of an update's computation, if the kernels reach this share of the peak."""
        return self.tokens * self.flops_per_token * (1 + self.recomputed) / (self.gpus * self.peak * kernels)

    def tensor_seconds(self, share: float) -> float:
        """Of an update: four all-reduces per layer and sequence, of its activations in two bytes."""
        if self.tensor == 1:
            return 0.0
        layers_here = self.layers / self.pipeline * self.micro_batches
        one = all_reduce.ring(2 * self.sequence * self.width, self.tensor, Link(2e-6, self.inside * share))
        return 4 * layers_here * one

    def data_seconds(self, share: float) -> float:
        """Of an update: the gradients of a device's part, summed over the ranks that hold the same part."""
        part = (self.held or self.parameters) / self.tensor / self.pipeline / self.shards
        link = Link(2e-5, self.between * share)
        return all_reduce.library(self.gradient_bytes * part, self.data // self.shards, link)

    def expert_seconds(self, share: float) -> float:
        """Of an update: tokens on their way to experts on other nodes, and back."""
        return self.tokens * self.exchanged / self.gpus / (self.between * share)

    def mfu(self, kernels: float, chunks: float, share: float, exposed: float) -> float:
        """What the trainer would report, with this share of the messages not hidden."""
        compute = self.compute(kernels)
        extra = self.tensor_seconds(share) + self.data_seconds(share) + self.expert_seconds(share)
        return kernels / (1 + self.recomputed) / (1 + self.bubble(chunks) + exposed * extra / compute)
