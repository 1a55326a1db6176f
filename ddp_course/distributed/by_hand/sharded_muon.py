"""ZeRO-1 for Muon (Jordan et al., 2024): each rank owns whole matrices.

AdamW treats each element by itself, so its state can be sharded anywhere. Muon makes the update of a matrix orthogonal,
for which it needs the whole matrix: a rank with a part would make that part orthogonal, which is a different update.
"""

import torch
from torch import Tensor

from ddp_course.distributed.by_hand.sharded_optimizer import ShardedOptimizer

NEWTON_SCHULZ_STEPS = 5  # torch.optim.Muon's default


def newton_schulz_flops(matrix: Tensor) -> int:
    """FLOPs to make a matrix's update orthogonal: each step has two products with the long side, and one without."""
    short, long = sorted(matrix.shape)
    return NEWTON_SCHULZ_STEPS * (4 * short**2 * long + 2 * short**3)


def sharded_muon(matrices, **options) -> ShardedOptimizer:
    """torch's Muon, sharded: the owner of a matrix steps it and broadcasts the result. options: those of Muon.

    For the matrices of hidden layers. Embeddings, the output layer, biases and norms take AdamW.
    """
    return ShardedOptimizer(matrices, torch.optim.Muon, newton_schulz_flops, **options)
