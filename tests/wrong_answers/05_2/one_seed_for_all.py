# mistake: seeds everything alike, on all ranks
# state: wrong
# check: what is a ranks own differs
# message: drew the same dropout as a rank before

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
    torch.manual_seed(1_000_003 * seed + epoch)
    weights = torch.randn(6, generator=torch.Generator().manual_seed(seed))
    order = torch.randperm(SAMPLES)
    samples = order[rank::world_size].tolist()
    dropout = torch.rand(32) < 0.5
    noise = torch.randn(6)
    return {"weights": weights, "samples": samples, "dropout": dropout, "noise": noise}
