# mistake: calls losses equal that agree to four digits
# state: wrong
# check: the detector tells runs apart
# message: the last loss is off by 0.005 %

import math

import torch
import torch.distributed as dist

CONTEXT = 8  # tokens of a window


def not_the_same_run(curves: dict[int, list[float]]) -> list[int]:
    """The world sizes whose losses are not those of one process, the smallest first."""

    def same(a, b):
        return len(a) == len(b) and all(math.isclose(x, y, rel_tol=1e-4) for x, y in zip(a, b, strict=True))

    return sorted(size for size, losses in curves.items() if not same(losses, curves[1]))


def train(window, tokens_per_update, micro_batch_size, updates):
    """Make `updates` steps on updates of `tokens_per_update` tokens; returns the loss of each, and the weights."""
    rank, world = dist.get_rank(), dist.get_world_size()
    together = world * micro_batch_size * CONTEXT
    accumulation, rest = divmod(tokens_per_update, together)
    if rest:  # the same arithmetic on every rank: all of them raise
        fits = " or ".join(str(n * together) for n in (accumulation, accumulation + 1) if n)
        raise ValueError(f"{tokens_per_update} tokens an update do not divide by {together}; nearest that do: {fits}")
    weights, losses = torch.zeros(3, dtype=torch.float64, requires_grad=True), []
    for update in range(updates):
        total = torch.zeros((), dtype=torch.float64)
        for micro in range(accumulation):
            first = (micro * world + rank) * micro_batch_size
            rows = [window(update, first + i) for i in range(micro_batch_size)]
            inputs, targets = (torch.cat(part) for part in zip(*rows, strict=True))
            loss = ((inputs @ weights - targets) ** 2).sum() / tokens_per_update
            loss.backward()
            total += loss.detach()
        dist.all_reduce(total)  # once an update, not once a micro-batch
        dist.all_reduce(weights.grad)
        with torch.no_grad():
            weights -= 0.1 * weights.grad
        weights.grad = None
        losses.append(total.item())
    return losses, weights.detach()
