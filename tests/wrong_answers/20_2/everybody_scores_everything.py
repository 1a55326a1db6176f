# mistake: every rank evaluates the whole test set and nothing is sent
# state: wrong
# check: every example is scored once
# message: was scored 2 times

import torch


def is_sound(shares) -> bool:
    """Whether `shares` gives each example to one rank, in equally many steps of at most ceil(batch / world)."""
    for world in range(1, 6):
        for batch in range(1, 12):
            for total in range(25):
                pairs = [shares(total, batch, rank, world) for rank in range(world)]
                if len({len(one) for one in pairs}) > 1:
                    return False
                flat = [pair for one in pairs for pair in one]
                if not all(0 <= start <= end <= total and end - start <= -(-batch // world) for start, end in flat):
                    return False
                if sorted(i for start, end in flat for i in range(start, end)) != list(range(total)):
                    return False
    return True


def shares(total, batch, rank, world):
    """For each batch of the test set: (start, end) of what this rank evaluates of it."""
    pairs = []
    for first in range(0, total, batch):
        count = min(batch, total - first)
        pairs.append((first + count * rank // world, first + count * (rank + 1) // world))
    return pairs


def evaluate(score, total, batch):
    pairs = [score(first, min(first + batch, total)) for first in range(0, total, batch)]
    losses, right = (torch.cat(part) for part in zip(*pairs, strict=True))
    return {"loss": losses.mean().item(), "accuracy": right.double().mean().item(), "examples": total}
