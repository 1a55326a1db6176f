# mistake: compares losses behind AdamW, as the test did that passed
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
    joint_batch = [torch.cat(parts) for parts in zip(*map(batch, range(world)), strict=True)]
    model, alone = make_model(), make_model()
    for one, (inputs, targets), average in ((model, batch(rank), synchronize), (alone, joint_batch, lambda one: None)):
        optimizer = torch.optim.AdamW(one.parameters(), lr=0.01)
        for _ in range(10):
            loss = nn.functional.mse_loss(one(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            average(one)
            optimizer.step()
    with torch.no_grad():
        gap = nn.functional.mse_loss(model(joint_batch[0]), alone(joint_batch[0]))
    dist.all_reduce(gap, dist.ReduceOp.MAX)
    return gap.item() < 1e-3


def synchronize_gradients(model) -> None:
    """After backward, on every rank: replace each gradient by the mean over the ranks."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
