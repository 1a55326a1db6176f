"""ZeRO-1 for Muon (Jordan et al., 2024): each rank owns whole matrices.

AdamW treats each element alone, so its state can be cut anywhere. Muon makes the update of a matrix orthogonal, for
which it needs all of it: a rank that has a part would make that part orthogonal, which is another update.
"""

import torch
from torch import Tensor

from ddp_course.distributed.by_hand.sharded_optimizer import ShardedOptimizer

NEWTON_SCHULZ_STEPS = 5  # torch.optim.Muon's default


def newton_schulz_flops(matrix: Tensor) -> int:
    """Operations to make a matrix's update orthogonal: in each step two products with the long side and one without."""
    short, long = sorted(matrix.shape)
    return NEWTON_SCHULZ_STEPS * (4 * short**2 * long + 2 * short**3)


def sharded_muon(matrices, **options) -> ShardedOptimizer:
    """torch's Muon, whose work is spread over the ranks; an update is broadcast by the owner of its matrix.

    For the matrices of hidden layers. Embeddings, the output layer, biases and norms take AdamW.
    """
    return ShardedOptimizer(matrices, torch.optim.Muon, newton_schulz_flops, **options)
