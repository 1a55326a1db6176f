"""Assumptions about a cluster, until it is measured."""

from ddp_course.plan.uncertainty import Range

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
