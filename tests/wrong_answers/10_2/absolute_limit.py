# mistake: calls losses equal that are less than 1e-6 apart
# state: wrong
# check: the detector tells runs apart
# message: tiny losses

import torch
import torch.distributed as dist

CONTEXT = 8


def train(window, tokens_per_update, micro_batch_size, updates):
    rank, world = dist.get_rank(), dist.get_world_size()
    together = world * micro_batch_size * CONTEXT
    accumulation, rest = divmod(tokens_per_update, together)
    if rest:
        fits = [n * together for n in (accumulation, accumulation + 1) if n]
        raise ValueError(f"{tokens_per_update} tokens an update do not divide by {together}; nearest: {fits}")
    weights, losses = torch.zeros(3, dtype=torch.float64, requires_grad=True), []
    for update in range(updates):
        total = torch.zeros((), dtype=torch.float64)
        for micro in range(accumulation):
            first = (micro * world + rank) * micro_batch_size
            rows = [window(update, first + i) for i in range(micro_batch_size)]
            inputs, targets = (torch.cat(part) for part in zip(*rows, strict=True))
            loss = ((inputs @ weights - targets) ** 2).mean()
            (loss / accumulation).backward()
            total += loss.detach()
        dist.all_reduce(total)
        dist.all_reduce(weights.grad)
        with torch.no_grad():
            weights -= 0.1 * weights.grad / world
        weights.grad = None
        losses.append(total.item() / accumulation / world)
    return losses, weights.detach()


def not_the_same_run(curves):
    def same(a, b):
        return len(a) == len(b) and all(abs(x - y) < 1e-4 for x, y in zip(a, b, strict=True))

    return sorted(size for size, losses in curves.items() if not same(losses, curves[1]))
