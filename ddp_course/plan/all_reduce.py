"""Seconds of an all-reduce: over equal links, and over nodes of GPUs with faster links inside.

`size`: bytes of the whole tensor. Formulas: Thakur, Rabenseifner and Gropp, "Optimization of Collective
Communication Operations in MPICH" (2005).
"""

import math

from ddp_course.base.errors import InputError
from ddp_course.plan.link import Link


def ring(size: float, ranks: int, link: Link) -> float:
    """A ring of n ranks: 2(n - 1) messages of size / n bytes. For large n, a rank sends almost 2 size bytes."""
    messages = 2 * (ranks - 1)
    return messages * (link.alpha + size / ranks / link.beta)


def tree(size: float, ranks: int, link: Link) -> float:
    """A binary tree, up and down again, pipelined in small pieces: 2 log2(n) latencies, 2 size bytes."""
    return 2 * math.ceil(math.log2(ranks)) * link.alpha + (2 * size / link.beta if ranks > 1 else 0.0)


def library(size: float, ranks: int, link: Link) -> float:
    """The quicker of ring and tree; NCCL also chooses by size."""
    return min(ring(size, ranks, link), tree(size, ranks, link))


def hierarchical(
    size: float, nodes: int, per_node: int, inside: Link, between: Link, rails: int | None = None
) -> float:
    """Reduce-scatter inside each node, all-reduce of every piece between the nodes, all-gather inside, in sequence.

    between: the link of one network card. rails: cards per node; by default each GPU has one for its piece, with fewer
    the GPUs share them. Raises InputError unless rails is from 1 to per_node.
    """
    return sum(_phases(size, nodes, per_node, inside, between, rails))


def pipelined(size: float, nodes: int, per_node: int, inside: Link, between: Link, rails: int | None = None) -> float:
    """`hierarchical` with its phases overlapped, as NCCL does for large tensors: the slower link decides."""
    within, across = _phases(size, nodes, per_node, inside, between, rails)
    latency_within, latency_across = _phases(0, nodes, per_node, inside, between, rails)
    return latency_within + latency_across + max(within - latency_within, across - latency_across)


def _phases(
    size: float, nodes: int, per_node: int, inside: Link, between: Link, rails: int | None
) -> tuple[float, float]:
    """The seconds on the links inside the nodes, and on those between them."""
    rails = per_node if rails is None else rails
    if not 1 <= rails <= per_node:
        raise InputError(f"a node with {per_node} GPUs has 1 to {per_node} network cards, got {rails}")
    share = Link(between.alpha, between.beta * rails / per_node)  # of its node's cards, per GPU
    return ring(size, per_node, inside), library(size / per_node, nodes, share)
