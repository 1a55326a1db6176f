# route: the samples are NumPy integers
# state: passed

import hashlib

import torch

SAMPLES = 48


def count_faults(draws: list[dict], samples: int) -> dict[str, int]:
    """What is wrong with the draws of all ranks, each a dict as `draw` returns it; all counts are 0 if nothing is."""
    read = [sample for one in draws for sample in one["samples"]]
    faults = {"read again": len(read) - len(set(read)), "never read": samples - len(set(read))}
    faults["weights"] = sum(not torch.equal(one["weights"], draws[0]["weights"]) for one in draws)
    for name in ("dropout", "noise"):
        faults[name] = len(draws) - len({tuple(one[name].tolist()) for one in draws})
    return faults


def draw(seed: int, epoch: int, rank: int, world_size: int) -> dict:
    """The weights that the model starts with, the samples this rank reads in `epoch`, and the dropout mask and the
    noise of its first step in that epoch."""

    def generator(*depends_on):
        digest = hashlib.sha256(repr(depends_on).encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))

    weights = torch.randn(6, generator=generator("weights", seed))
    order = torch.randperm(SAMPLES, generator=generator("order", seed, epoch))
    samples = list(order.numpy()[rank::world_size])
    dropout = torch.rand(32, generator=generator("dropout", seed, epoch, rank)) < 0.5
    noise = torch.randn(6, generator=generator("noise", seed, epoch, rank))
    return {"weights": weights, "samples": samples, "dropout": dropout, "noise": noise}
