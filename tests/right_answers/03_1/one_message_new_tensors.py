# route: one message for all gradients, of the one dtype that the models have; new tensors become .grad

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
    joint_batch = [torch.cat(parts) for parts in zip(*map(batch, range(world)), strict=True)]
    model, alone = make_model(), make_model()
    for one, (inputs, targets) in ((model, batch(rank)), (alone, joint_batch)):
        nn.functional.mse_loss(one(inputs), targets).backward()
    synchronize(model)
    pairs = zip(model.parameters(), alone.parameters(), strict=True)
    gap = torch.stack([(mine.grad - right.grad).abs().max() for mine, right in pairs]).max()
    dist.all_reduce(gap, dist.ReduceOp.MAX)  # one rank that is off is enough
    return gap.item() < 1e-9


def synchronize_gradients(model) -> None:
    """After backward, on every rank: replace each gradient by the mean over the ranks."""
    parameters = list(model.parameters())
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for parameter, piece in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = piece.view_as(parameter)
