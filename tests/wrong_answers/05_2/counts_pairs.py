# mistake: counts ranks that share both, the mask and the noise
# state: wrong
# check: the counts are right
# message: ranks 1 and 2 draw the same mask, and each its own noise: count_faults said 'dropout': 0, not 1

import hashlib

import torch

SAMPLES = 48


def count_faults(draws: list[dict], samples: int) -> dict[str, int]:
    """What is wrong with the draws of all ranks, each a dict as `draw` returns it; all counts are 0 if nothing is."""
    read = [sample for one in draws for sample in one["samples"]]
    faults = {"read again": len(read) - len(set(read)), "never read": samples - len(set(read))}
    faults["weights"] = sum(not torch.equal(one["weights"], draws[0]["weights"]) for one in draws)
    own = {(tuple(one["dropout"].tolist()), tuple(one["noise"].tolist())) for one in draws}
    faults["dropout"] = faults["noise"] = len(draws) - len(own)
    return faults


def draw(seed: int, epoch: int, rank: int, world_size: int) -> dict:
    """The weights that the model starts with, the samples this rank reads in `epoch`, and the dropout mask and the
    noise of its first step in that epoch."""

    def generator(*depends_on):
        digest = hashlib.sha256(repr(depends_on).encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))

    weights = torch.randn(6, generator=generator("weights", seed))
    order = torch.randperm(SAMPLES, generator=generator("order", seed, epoch))
    samples = order[rank::world_size].tolist()
    dropout = torch.rand(32, generator=generator("dropout", seed, epoch, rank)) < 0.5
    noise = torch.randn(6, generator=generator("noise", seed, epoch, rank))
    return {"weights": weights, "samples": samples, "dropout": dropout, "noise": noise}
