# mistake: adds seed and epoch, seed and rank: run 1 meets run 2
# state: wrong
# check: seeds do not meet
# message: drew the same

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
    def generator(number):
        return torch.Generator().manual_seed(number)

    weights = torch.randn(6, generator=generator(seed))
    order = torch.randperm(SAMPLES, generator=generator(seed + epoch))
    samples = order[rank::world_size].tolist()
    own = generator(seed + 1000 * epoch + rank)
    dropout = torch.rand(32, generator=own) < 0.5
    noise = torch.randn(6, generator=own)
    return {"weights": weights, "samples": samples, "dropout": dropout, "noise": noise}
