# mistake: reduces to rank 0, and the others return what the reduction left in their tensor
# state: wrong
# check: metrics are exact on every rank
# message: over all examples it is

import torch
import torch.distributed as dist


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
    """Mean loss, accuracy and number of puzzles, the same on every rank."""
    sums = torch.zeros(3, dtype=torch.float64)
    for start, end in shares(total, batch, dist.get_rank(), dist.get_world_size()):
        losses, right = score(start, end)
        sums += torch.stack([losses.sum(), right.sum(), torch.tensor(end - start)])
    dist.reduce(sums, dst=0)
    loss, solved, examples = sums.tolist()
    return {"loss": loss / examples, "accuracy": solved / examples, "examples": int(examples)}
