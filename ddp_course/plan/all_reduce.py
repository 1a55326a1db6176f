"""Seconds of an all-reduce: a ring over equal links, and GPUs in nodes, whose links inside are faster.

`size` is in bytes, the whole tensor's. Formulas: Thakur, Rabenseifner and Gropp, "Optimization of Collective
Communication Operations in MPICH" (2005).
"""

import math

from ddp_course.base.errors import InputError
from ddp_course.plan.link import Link


def ring(size: float, ranks: int, link: Link) -> float:
    """2(n - 1) messages of size / n bytes. The bytes that a rank sends approach 2 size; the messages grow with n."""
    messages = 2 * (ranks - 1)
    return messages * (link.alpha + size / ranks / link.beta)


def tree(size: float, ranks: int, link: Link) -> float:
    """Up a binary tree and down again, in small pieces one behind the other: few messages deep, the same bytes."""
    return 2 * math.ceil(math.log2(ranks)) * link.alpha + (2 * size / link.beta if ranks > 1 else 0.0)


def library(size: float, ranks: int, link: Link) -> float:
    """The quicker of ring and tree, as a library such as NCCL chooses by size."""
    return min(ring(size, ranks, link), tree(size, ranks, link))


def hierarchical(size: float, nodes: int, per_node: int, inside: Link, between: Link, rails=None) -> float:
    """Reduce-scatter inside each node, all-reduce of every piece between the nodes, all-gather inside.

    between: one network card. rails: cards per node; with one per GPU (the default) each GPU's piece travels on its own
    rail, with fewer the pieces of a node share them. The three phases come one after the other here; a library cuts
    the tensor and runs them side by side, see `pipelined`.
    """
    within, across = _phases(size, nodes, per_node, inside, between, rails)
    return within + across


def pipelined(size: float, nodes: int, per_node: int, inside: Link, between: Link, rails=None) -> float:
    """The same with the phases side by side, as NCCL does for large tensors: the slower of both links decides."""
    within, across = _phases(size, nodes, per_node, inside, between, rails)
    none_inside, none_across = _phases(0, nodes, per_node, inside, between, rails)
    return none_inside + none_across + max(within - none_inside, across - none_across)


def _phases(size: float, nodes: int, per_node: int, inside: Link, between: Link, rails: int | None):
    rails = per_node if rails is None else rails
    if not 1 <= rails <= per_node:
        raise InputError(f"a node with {per_node} GPUs has 1 to {per_node} network cards, got {rails}")
    share = Link(between.alpha, between.beta * rails / per_node)  # what a GPU gets of its node's cards
    return ring(size, per_node, inside), library(size / per_node, nodes, share)
