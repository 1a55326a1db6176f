# mistake: the detector returns a text in place of False
# state: wrong
# check: sound shares pass
# message: it should be True or False

import torch
import torch.distributed as dist


def is_sound(shares) -> str:
    return "sound" if [shares(9, 7, rank, 2) for rank in range(2)] else "not sound"


def shares(total, batch, rank, world):
    """For each batch of the test set: (start, end) of what this rank evaluates of it."""
    pairs = []
    for first in range(0, total, batch):
        count = min(batch, total - first)
        pairs.append((first + count * rank // world, first + count * (rank + 1) // world))
    return pairs


def evaluate(score, total, batch):
    """Mean loss, accuracy and number of puzzles, the same on every rank."""
    sums = torch.zeros(3, dtype=torch.float64)
    for start, end in shares(total, batch, dist.get_rank(), dist.get_world_size()):
        losses, right = score(start, end)
        sums += torch.stack([losses.sum(), right.sum(), torch.tensor(end - start)])
    dist.all_reduce(sums)
    loss, solved, examples = sums.tolist()
    return {"loss": loss / examples, "accuracy": solved / examples, "examples": int(examples)}
