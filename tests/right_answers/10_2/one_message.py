# route: gradient and loss travel in one message; sums instead of means, divided once; the detector uses torch

import torch
import torch.distributed as dist


def train(window, tokens_per_update, micro_batch_size, updates):
    rank, world = dist.get_rank(), dist.get_world_size()
    context = 8
    windows = tokens_per_update / context / micro_batch_size / world
    if windows != int(windows) or windows == 0:
        step = context * micro_batch_size * world
        below, above = int(windows) * step, (int(windows) + 1) * step
        raise ValueError(f"{tokens_per_update:,} does not fit; try {above:,}" + (f" or {below:,}" if below else ""))
    weights, losses = torch.zeros(3, dtype=torch.float64), []
    for update in range(updates):
        sums = torch.zeros(4, dtype=torch.float64)
        for number in range(rank, tokens_per_update // context, world):
            inputs, targets = window(update, number)
            errors = inputs @ weights - targets
            sums[:3] += 2 * errors @ inputs
            sums[3] += errors @ errors
        dist.all_reduce(sums)
        sums /= tokens_per_update
        weights = weights - 0.1 * sums[:3]
        losses.append(float(sums[3]))
    return losses, weights


def not_the_same_run(curves):
    one, different = torch.tensor(curves[1]), []
    for size in sorted(curves):
        other = torch.tensor(curves[size])
        if other.shape != one.shape or not torch.allclose(other, one, rtol=1e-5, atol=0):
            different.append(size)
    return different
