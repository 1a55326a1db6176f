"""Random numbers that a rank draws for an epoch. The seeds are synchronised, says the design: seed + rank."""

import torch

SAMPLES = 48


def draw(seed, epoch, rank, world_size):
    """The weights that the model starts with, the samples this rank reads in `epoch`, and the dropout mask and the
    noise of its first step in that epoch."""
    torch.manual_seed(seed + rank)
    weights = torch.randn(6)
    order = torch.randperm(SAMPLES)
    samples = order[rank::world_size].tolist()
    dropout = torch.rand(32) < 0.5
    noise = torch.randn(6)
    return {"weights": weights, "samples": samples, "dropout": dropout, "noise": noise}
