# mistake: the metrics are repaired, the shares are as they were
# state: wrong
# check: every example is scored once
# message: asked for the examples 10 to 9: that is -1

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
    local_batch = batch // world
    starts = [first + rank * local_batch for first in range(0, total, batch)]
    return [(start, min(start + local_batch, total)) for start in starts]


def evaluate(score, total, batch):
    """Mean loss, accuracy and number of puzzles, the same on every rank."""
    sums = torch.zeros(3, dtype=torch.float64)
    for start, end in shares(total, batch, dist.get_rank(), dist.get_world_size()):
        losses, right = score(start, end)
        sums += torch.stack([losses.sum(), right.sum(), torch.tensor(end - start)])
    dist.all_reduce(sums)
    loss, solved, examples = sums.tolist()
    examples = max(examples, 1)
    return {"loss": loss / examples, "accuracy": solved / examples, "examples": int(examples)}
