"""Assumptions about a cluster that nobody has measured yet."""

from dataclasses import dataclass

from ddp_course.base.errors import InputError


@dataclass(frozen=True)
class Range:
    """A number that lies between `low` and `high`. Both are equal once it is measured."""

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
        return self.low + share * (self.high - self.low)


# MFU: published runs of dense models lie in it (notebook 15b). Share of a link: what all-reduces of large messages
# reach of the stated speed, as nccl-tests show. Seconds per message: from a node with fast cards to cloud instances.
# Spread: standard deviation of one GPU's computation from step to step.
ASSUMED = {
    "mfu": Range(0.30, 0.55),
    "link_share": Range(0.60, 0.92),
    "latency": Range(5e-6, 30e-6),
    "spread": Range(0.0, 0.02),
}
KERNELS = 0.55  # share of the peak while a GPU computes
LINK_SHARE, BETWEEN_LATENCY = ASSUMED["link_share"].middle, ASSUMED["latency"].middle
INSIDE_LATENCY = 2e-6  # of a message inside a node
KERNELS_SPREAD = 0.15  # relative, either way: a mesh changes the shapes of the products
COUNTED_SHARE = 0.64  # the smallest share that the memory formulas counted of what was measured (26b.5)
