# mistake: gives seed, epoch and rank a digit each: rank 10 is rank 0 of the next epoch
# state: wrong
# check: seeds do not meet
# message: seed 1, epoch 1, rank 0 and seed 1, epoch 0, rank 10 drew the same dropout mask


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
        what, *numbers = depends_on
        seed, epoch, rank = (numbers + [0, 0])[:3]
        boxes = ("weights", "order", "dropout", "noise")
        return torch.Generator().manual_seed(1_000_000 * boxes.index(what) + 100 * seed + 10 * epoch + rank)

    weights = torch.randn(6, generator=generator("weights", seed))
    order = torch.randperm(SAMPLES, generator=generator("order", seed, epoch))
    samples = order[rank::world_size].tolist()
    dropout = torch.rand(32, generator=generator("dropout", seed, epoch, rank)) < 0.5
    noise = torch.randn(6, generator=generator("noise", seed, epoch, rank))
    return {"weights": weights, "samples": samples, "dropout": dropout, "noise": noise}
