"""What is assumed of a cluster until it is measured."""

from dataclasses import dataclass

from ddp_course.base.errors import InputError


@dataclass(frozen=True)
class Range:
    """The ends of the interval in which a number lies; they are equal once it is measured."""

    low: float
    high: float

    def __post_init__(self):
        if not 0 <= self.low <= self.high < float("inf"):
            raise InputError(f"a range goes from its low to its high end, both from 0 up, got {self.low}-{self.high}")

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2

    @property
    def known(self) -> bool:
        return self.low == self.high

    def at(self, share: float) -> float:
        """The number at this share of the way from `low` to `high`."""
        return self.low + share * (self.high - self.low)


ASSUMED = {
    "mfu": Range(0.30, 0.55),  # published runs of dense models lie in it (notebook 15b)
    "link_share": Range(0.60, 0.92),  # of the stated speed, reached by large all-reduces in nccl-tests
    "latency": Range(5e-6, 30e-6),  # seconds per message between nodes: fast cards to cloud instances
    "spread": Range(0.0, 0.02),  # standard deviation / mean of one GPU's computation, from step to step
}
KERNELS = 0.55  # share of the peak FLOP/s while a GPU computes
LINK_SHARE, BETWEEN_LATENCY = ASSUMED["link_share"].middle, ASSUMED["latency"].middle
INSIDE_LATENCY = 2e-6  # seconds per message inside a node
KERNELS_SPREAD = 0.15  # relative, up and down: a mesh changes the shapes of the matrix products
COUNTED_SHARE = 0.64  # smallest ratio of memory by the formulas to measured memory (26b.5)
