"""Inside a rank, for 03.1: give the learner's detector right and wrong ways to average, and test the learner's own."""

import torch
import torch.distributed as dist
from torch import nn

from ddp_course.grader.harness.versions import driver_of

# ---- versions of synchronize_gradients(model) ---------------------------------------------------------------------


def scaled_sum(model, factor=1.0):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad *= factor


def mean(model):
    scaled_sum(model, 1 / dist.get_world_size())


def sum_of_shares(model):
    for parameter in model.parameters():
        parameter.grad /= dist.get_world_size()
    scaled_sum(model)


def mean_in_one_message(model):
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    pieces = (flat / dist.get_world_size()).split([gradient.numel() for gradient in gradients])
    for gradient, piece in zip(gradients, pieces, strict=True):
        gradient.copy_(piece.view_as(gradient))


def mean_in_new_tensors(model):
    for parameter in model.parameters():
        gradient = parameter.grad.clone()
        dist.all_reduce(gradient)
        parameter.grad = gradient / dist.get_world_size()


def mean_through_rank_0(model):
    for parameter in model.parameters():
        dist.reduce(parameter.grad, 0)
        parameter.grad /= dist.get_world_size()
        dist.broadcast(parameter.grad, 0)


def gradients_of_rank_0(model):
    for parameter in model.parameters():
        dist.broadcast(parameter.grad, 0)


def mean_but(excluded):
    """A version that averages all but excluded(gradients), a list of views of the gradients: they keep their values."""

    def synchronize(model):
        views = excluded([parameter.grad for parameter in model.parameters()])
        old_values = [view.clone() for view in views]
        mean(model)
        for view, values in zip(views, old_values, strict=True):
            view.copy_(values)

    return synchronize


def halved_on_rank_0(model):
    mean(model)
    if dist.get_rank() == 0:
        for parameter in model.parameters():
            parameter.grad *= 0.5


def a_percent_too_large(model):
    """The mean, but one bias is 1 % too large, which hardly changes the norm of all gradients together."""
    mean(model)
    bias = min(model.parameters(), key=torch.Tensor.dim)
    bias.grad *= 1.01


def shifted(model):
    mean(model)
    for parameter in model.parameters():
        parameter.grad -= 0.5


def reversed_elements(model):
    mean(model)
    for parameter in model.parameters():
        parameter.grad.copy_(parameter.grad.flatten().flip(0).view_as(parameter))


VERSIONS = {
    "the mean": mean,
    "each rank divides, then they add": sum_of_shares,
    "the mean, in one message": mean_in_one_message,
    "reduced to rank 0, divided, broadcast": mean_through_rank_0,
    "the mean, in new tensors": mean_in_new_tensors,
    "the sum": scaled_sum,
    "the sum, divided by the world size twice": lambda model: scaled_sum(model, dist.get_world_size() ** -2),
    "nothing at all": lambda model: None,
    "rank 0's own gradients for all": gradients_of_rank_0,
    "the mean of the weights, biases left out": mean_but(
        lambda gradients: [gradient for gradient in gradients if gradient.dim() < 2]
    ),
    "the mean, but the last weight left out": mean_but(lambda gradients: [max(gradients[::-1], key=torch.Tensor.dim)]),
    "the mean on rank 0, the others keep their own": mean_but(lambda gradients: gradients if dist.get_rank() else []),
    "the mean, on rank 0 halved": halved_on_rank_0,
    "the mean, one bias 1 % too large": a_percent_too_large,
    "the mean, less 0.5 in every element": shifted,
    "the mean times -1": lambda model: scaled_sum(model, -1 / dist.get_world_size()),
    "the mean, but the last element of each gradient left out": mean_but(
        lambda gradients: [gradient.view(-1)[-1:] for gradient in gradients if gradient.numel() > 1]
    ),
    "the mean, the elements of each gradient in reverse": reversed_elements,
    "NaN in every element": lambda model: scaled_sum(model, float("nan")),
}


def try_out(synchronize):
    """The smallest and the largest factor, over a gradient's elements, between what `synchronize` leaves and the mean.

    By name and dtype of the parameter; None where it leaves no gradient. The mean is that over the ranks. No two
    elements of a model have the same gradient, and most of them are thirds, which a shorter dtype rounds.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    mean_of_ranks = sum(2.0 + peer for peer in range(world)) / world
    result = {}
    for dtype in (torch.float32, torch.float64):
        model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)).to(dtype)
        elements = torch.arange(1.0, 1 + sum(parameter.numel() for parameter in model.parameters()), dtype=dtype) / 3
        pieces = elements.split([parameter.numel() for parameter in model.parameters()])
        for parameter, piece in zip(model.parameters(), pieces, strict=True):
            parameter.grad = piece.view_as(parameter) * (2.0 + rank)
        synchronize(model)
        for (name, parameter), piece in zip(model.named_parameters(), pieces, strict=True):
            extremes = None
            if parameter.grad is not None:
                factors = (parameter.grad.flatten() / (mean_of_ranks * piece)).double()
                extremes = [factors.min().item(), factors.max().item()]
            result[f"{name} ({str(dtype)[6:]})"] = extremes
    return result


drive = driver_of(VERSIONS, try_out)
