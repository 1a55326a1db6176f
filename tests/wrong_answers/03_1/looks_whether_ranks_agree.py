# mistake: takes equal gradients on all ranks for right ones
# state: wrong
# check: wrong versions are caught
# message: (the sum): gradients_are_right returned True, but that version is wrong

import torch
import torch.distributed as dist
from torch import nn

SAMPLES = 8


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).double()


def batch(rank):
    """The samples of one rank: inputs (8, 6) and targets (8, 1)."""
    inputs = torch.randn(SAMPLES, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))
    return inputs, inputs.sum(1, keepdim=True).sin()


def gradients_are_right(synchronize) -> bool:
    """Whether `synchronize(model)` leaves in every .grad what one process on the joint batch would have."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model = make_model()
    inputs, targets = batch(rank)
    nn.functional.mse_loss(model(inputs), targets).backward()
    synchronize(model)
    flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    everyones = [torch.empty_like(flat) for _ in range(world)]
    dist.all_gather(everyones, flat)
    gap = torch.stack([(other - everyones[0]).abs().max() for other in everyones]).max()
    return gap.item() < 1e-9


def synchronize_gradients(model) -> None:
    """After backward, on every rank: replace each gradient by the mean over the ranks."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
