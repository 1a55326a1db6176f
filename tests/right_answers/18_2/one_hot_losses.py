# route: factors by losses of 0 and 1, random weights, a set of names; the loss is a dot product and cut in a loop

import torch


def factors_of(weighted_loss, weights, mode, cap):
    return [float(weighted_loss(row, weights, mode, cap)) * len(weights) for row in torch.eye(len(weights)).double()]


def near(found, wanted):
    return all(abs(a - b) <= 1e-6 * max(1, abs(b)) for a, b in zip(found, wanted, strict=True))


def broken_promises(weighted_loss):
    numbers, found = torch.Generator().manual_seed(3), set()
    for pairs in (3, 6):
        weights = 5 * torch.rand(pairs, generator=numbers).double() + 0.2
        wanted = {
            "none": [1.0] * pairs,
            "mean": (weights * pairs / weights.sum()).tolist(),
            "sum": weights.tolist(),
        }
        for mode, right in wanted.items():
            free = factors_of(weighted_loss, weights, mode, None)
            if not near(free, right):
                found.add(mode)
            for cap in (0.3, 0.9, 1.1, 2.0):
                if not near(factors_of(weighted_loss, weights, mode, cap), [min(one, cap) for one in free]):
                    found.add("cap")
    return found


def weighted_loss(losses, weights, mode, cap):
    total = 0.0
    for loss, weight in zip(losses, weights.tolist(), strict=True):
        factor = 1.0 if mode == "none" else weight
        if mode == "mean":
            factor = weight * len(weights) / float(weights.sum())
        total = total + loss * (factor if cap is None or factor < cap else cap)
    return total / len(losses)
