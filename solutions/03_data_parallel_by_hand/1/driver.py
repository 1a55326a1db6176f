"""Inside a rank, for 03.1: hand the learner's detector right and wrong ways to average, and try the learner's own."""

import torch
import torch.distributed as dist
from torch import nn


def drive(function, what):
    """`function` is the learner's gradients_are_right or, for what="own", synchronize_gradients."""
    return try_out(function) if what == "own" else function(VERSIONS[what])


# ---- versions of synchronize_gradients(model) ---------------------------------------------------------------------


def add(model, factor=1.0):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad *= factor


def mean(model):
    add(model, 1 / dist.get_world_size())


def mean_of_shares(model):
    for parameter in model.parameters():
        parameter.grad /= dist.get_world_size()
    add(model)


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


def mean_by_way_of_rank_0(model):
    for parameter in model.parameters():
        dist.reduce(parameter.grad, 0)
        parameter.grad /= dist.get_world_size()
        dist.broadcast(parameter.grad, 0)


def of_rank_0(model):
    for parameter in model.parameters():
        dist.broadcast(parameter.grad, 0)


def mean_but(kept):
    """The mean, but for what kept(gradients) gives of the gradients: views, which a rank leaves as they are."""

    def synchronize(model):
        views = kept([parameter.grad for parameter in model.parameters()])
        own = [view.clone() for view in views]
        mean(model)
        for view, values in zip(views, own, strict=True):
            view.copy_(values)

    return synchronize


def right_on_the_others_only(model):
    mean(model)
    if dist.get_rank() == 0:
        for parameter in model.parameters():
            parameter.grad *= 0.5


def a_percent_too_large(model):
    """One gradient, and not the largest: beside all others together it hardly counts."""
    mean(model)
    bias = min(model.parameters(), key=torch.Tensor.dim)
    bias.grad *= 1.01


def shifted(model):
    mean(model)
    for parameter in model.parameters():
        parameter.grad -= 0.5


def elements_turned_round(model):
    mean(model)
    for parameter in model.parameters():
        parameter.grad.copy_(parameter.grad.flatten().flip(0).view_as(parameter))


VERSIONS = {
    "the mean": mean,
    "each rank divides, then they add": mean_of_shares,
    "the mean, in one message": mean_in_one_message,
    "reduced to rank 0, divided, broadcast": mean_by_way_of_rank_0,
    "the mean, in new tensors": mean_in_new_tensors,
    "the sum": add,
    "the sum, divided by the world size twice": lambda model: add(model, dist.get_world_size() ** -2),
    "nothing at all": lambda model: None,
    "rank 0's own gradients for all": of_rank_0,
    "the mean of the weights, biases left out": mean_but(
        lambda gradients: [gradient for gradient in gradients if gradient.dim() < 2]
    ),
    "the mean, but the last weight left out": mean_but(lambda gradients: [max(gradients[::-1], key=torch.Tensor.dim)]),
    "the mean on rank 0, the others keep their own": mean_but(lambda gradients: gradients if dist.get_rank() else []),
    "the mean, on rank 0 halved": right_on_the_others_only,
    "the mean, one bias 1 % too large": a_percent_too_large,
    "the mean, less 0.5 in every element": shifted,
    "the mean times -1": lambda model: add(model, -1 / dist.get_world_size()),
    "the mean, but the last element of each gradient left out": mean_but(
        lambda gradients: [gradient.view(-1)[-1:] for gradient in gradients if gradient.numel() > 1]
    ),
    "the mean, the elements of each gradient in reverse": elements_turned_round,
    "NaN in every element": lambda model: add(model, float("nan")),
}


def try_out(synchronize):
    """The smallest and the largest factor, over a gradient's elements, between what `synchronize` leaves and the mean.

    By name and dtype of the parameter; None where it leaves no gradient. The mean is that over the ranks. No two
    elements of a model have the same gradient.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    mean_of_ranks = sum(2.0 + peer for peer in range(world)) / world
    result = {}
    for dtype in (torch.float32, torch.float64):
        model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)).to(dtype)
        elements = torch.arange(1.0, 1 + sum(parameter.numel() for parameter in model.parameters()), dtype=dtype)
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
