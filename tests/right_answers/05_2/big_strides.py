# route: keeps numbers apart by large factors; counts with loops
# state: passed

import torch

SAMPLES = 48


def count_faults(draws: list[dict], samples: int) -> dict[str, int]:
    seen, faults = set(), {"read again": 0, "weights": 0, "dropout": 0, "noise": 0}
    for rank, one in enumerate(draws):
        for sample in one["samples"]:
            faults["read again"] += sample in seen
            seen.add(sample)
        faults["weights"] += int((one["weights"] != draws[0]["weights"]).any())
        for name in ("dropout", "noise"):
            faults[name] += int(any(torch.equal(one[name], before[name]) for before in draws[:rank]))
    return faults | {"never read": len(set(range(samples)) - seen)}


def draw(seed: int, epoch: int, rank: int, world_size: int) -> dict:
    shared, own = torch.Generator(), torch.Generator()
    weights = torch.randn(6, generator=shared.manual_seed(seed * 10**9))
    order = torch.randperm(SAMPLES, generator=shared.manual_seed(seed * 10**9 + (epoch + 1) * 10**5))
    samples = order[rank::world_size].tolist()
    own.manual_seed(seed * 10**9 + (epoch + 1) * 10**5 + rank + 1)
    dropout = torch.rand(32, generator=own) < 0.5
    noise = torch.randn(6, generator=own)
    return {"weights": weights, "samples": samples, "dropout": dropout, "noise": noise}
