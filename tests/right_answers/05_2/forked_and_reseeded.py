# route: re-seeds the common generator with numbers from NumPy's SeedSequence, within fork_rng
# state: passed

import numpy as np
import torch

SAMPLES = 48


def count_faults(draws: list[dict], samples: int) -> dict[str, int]:
    read = [sample for one in draws for sample in one["samples"]]
    faults = {"read again": len(read) - len(set(read)), "never read": samples - len(set(read))}
    faults["weights"] = sum(not torch.equal(one["weights"], draws[0]["weights"]) for one in draws)
    for name in ("dropout", "noise"):
        faults[name] = len(draws) - len({tuple(one[name].tolist()) for one in draws})
    return faults


def draw(seed: int, epoch: int, rank: int, world_size: int) -> dict:
    def seeded(*numbers):
        torch.manual_seed(int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1))

    with torch.random.fork_rng(devices=[]):
        seeded(seed, 0)
        weights = torch.randn(6)
        seeded(seed, 1, epoch)
        samples = torch.randperm(SAMPLES).chunk(world_size)[rank].tolist()
        seeded(seed, 2, epoch, rank)
        dropout = torch.rand(32) < 0.5
        noise = torch.randn(6)
    return {"weights": weights, "samples": samples, "dropout": dropout, "noise": noise}
