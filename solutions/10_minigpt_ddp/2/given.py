"""Train a linear model on windows of text; print the loss. Whatever the number of processes, it is one training run."""

from datetime import timedelta

import torch
import torch.distributed as dist

CONTEXT = 8  # tokens of a window


def train(window, tokens_per_update, micro_batch_size, steps):
    """Make `steps` steps of `tokens_per_update` tokens each. Returns the loss of each step, and the weights.

    window(step, number): inputs (CONTEXT, 3) and targets (CONTEXT,) of a window; the same on whichever rank.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    accumulation = tokens_per_update // (world * micro_batch_size * CONTEXT)
    weights, losses = torch.zeros(3, dtype=torch.float64, requires_grad=True), []
    for step in range(steps):
        for micro in range(accumulation):
            first = (micro * world + rank) * micro_batch_size
            rows = [window(step, first + i) for i in range(micro_batch_size)]
            inputs, targets = (torch.cat(part) for part in zip(*rows, strict=True))
            loss = ((inputs @ weights - targets) ** 2).mean()
            (loss / accumulation).backward()
        dist.all_reduce(weights.grad)
        with torch.no_grad():
            weights -= 0.1 * weights.grad / world
        weights.grad = None
        losses.append(loss.item())
    return losses, weights.detach()


def some_window(step, number):
    """Made up: the target is a mixture of the inputs, and noise that grows with the number of the window."""
    generator = torch.Generator().manual_seed(1000 * step + number)
    inputs, noise = torch.randn(2, CONTEXT, 3, generator=generator, dtype=torch.float64)
    return inputs, inputs @ torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64) + 0.1 * (number + 1) * noise[:, 0]


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    losses, weights = train(some_window, tokens_per_update=192, micro_batch_size=2, steps=6)
    if dist.get_rank() == 0:
        print("loss   ", " ".join(f"{loss:8.4f}" for loss in losses))
        print("weights", " ".join(f"{weight:8.4f}" for weight in weights.tolist()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
