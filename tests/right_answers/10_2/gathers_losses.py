# route: the loss is gathered from all ranks at the end, in one collective; weights are averaged by hand

import numpy as np
import torch
import torch.distributed as dist


def train(window, tokens_per_update, micro_batch_size, updates):
    rank, world = dist.get_rank(), dist.get_world_size()
    unit = 8 * micro_batch_size * world
    if tokens_per_update % unit:
        below = tokens_per_update - tokens_per_update % unit
        fits = " or ".join(str(n) for n in (below, below + unit) if n > 0)
        raise ValueError(f"an update of {tokens_per_update} tokens cannot be shared out; possible: {fits}")
    accumulation = tokens_per_update // unit
    weights = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    own = torch.zeros(updates, dtype=torch.float64)
    for update in range(updates):
        for micro in range(accumulation):
            for i in range(micro_batch_size):
                inputs, targets = window(update, (micro * world + rank) * micro_batch_size + i)
                loss = ((inputs @ weights - targets) ** 2).sum() / tokens_per_update
                loss.backward()
                own[update] += loss.item()
        dist.all_reduce(weights.grad)
        weights.data -= 0.1 * weights.grad
        weights.grad.zero_()
    dist.all_reduce(own)
    return own.tolist(), weights.detach().clone()


def not_the_same_run(curves):
    found = []
    for size, losses in sorted(curves.items()):
        if len(losses) != len(curves[1]) or not np.allclose(losses, curves[1], rtol=1e-6, atol=0.0):
            found += [size]
    return found
