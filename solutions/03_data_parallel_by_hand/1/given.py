"""Data parallel by hand, with the test that says it is right: its loss is that of one process."""

import torch
import torch.distributed as dist
import torch.distributed.nn  # imported later, by an optimizer, it would keep the group alive past its end
from torch import nn

STEPS, SAMPLES = 40, 8  # steps; samples in the batch of one rank


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).double()


def batch(rank):
    """The samples of one rank: inputs (8, 6) and targets (8, 1)."""
    inputs = torch.randn(SAMPLES, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))
    return inputs, inputs.sum(1, keepdim=True).sin()


def synchronize_gradients(model):
    """After backward, on every rank: what the ranks' gradients have in common."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def train(model, inputs, targets, synchronize=lambda model: None):
    """40 steps; returns the loss before each."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(STEPS):
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        synchronize(model)
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    losses = train(make_model(), *batch(rank), synchronize_gradients)
    dist.all_reduce(losses)
    global_batch = [torch.cat(parts) for parts in zip(*map(batch, range(world)), strict=True)]
    reference = train(make_model(), *global_batch)
    gap = (losses / world - reference).abs().max().item()
    if rank == 0:
        print(f"last loss {losses[-1] / world:.4f} on {world} ranks, {reference[-1]:.4f} on one process")
        print(f"largest gap {gap:.1e}: test {'passed' if gap < 1e-3 else 'FAILED'}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
