"""Inside a rank, for 04.1: models that differ between the ranks in a known way."""

import hashlib

import torch
import torch.distributed as dist
from torch import nn


class Layer(nn.Module):
    """A parameter, a frozen one, three buffers, and a tensor that is a plain attribute."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, dtype=torch.float64))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("mean", torch.zeros(4, dtype=torch.float64))
        self.register_buffer("count", torch.tensor(5))
        self.register_buffer("mask", torch.tensor([True, False]), persistent=False)
        self.table = torch.arange(3.0)
        self.part = nn.Identity()

    def forward(self, inputs):
        return (inputs * self.weight - self.mean).sum(1) + self.table.sum()


class Model(nn.Module):
    def __init__(self, layer=Layer):
        super().__init__()
        self.inner = layer()
        self.name = "no tensor"

    def forward(self, inputs):
        return self.inner(inputs)


def shift(name, amounts, place=-1):
    """Adds amounts[rank] to one element of a tensor of the inner layer."""

    def change(model, rank):
        tensor = getattr(model.inner, name).data
        tensor.view(-1)[place] = tensor.view(-1)[place] + amounts.get(rank, 0)

    return change


def cancelling(model, rank):
    model.inner.weight.data += torch.tensor([0.75, -0.75, 0, 0]) * (rank == 1)


def attribute(of):
    """Gives a tensor to a module that has none so far."""

    def change(model, rank):
        of(model).scale = torch.tensor([1.0, 2.0 * (rank == 1)])

    return change


def whole_number(model, rank):
    model.inner.steps = torch.tensor(7 + 3 * (rank == 1))


def flipped_mask(model, rank):
    model.inner.mask ^= rank == 1


MADE = {  # given: what is done to the model of each rank
    "nothing differs": lambda model, rank: None,
    "one weight of rank 1, by 0.5": shift("weight", {1: 0.5}),
    "two weights of rank 1, by 0.75 and -0.75": cancelling,
    # From 1 to -1: without the sign nothing differs.
    "a frozen parameter of the last rank, by -2": lambda m, r: shift("frozen", {dist.get_world_size() - 1: -2.0})(m, r),
    "one weight, rank 1 by 0.5 and rank 2 by -0.5": shift("weight", {1: 0.5, 2: -0.5}),
    "one weight, rank 0 by 0.5 and rank 2 by -0.5": shift("weight", {0: 0.5, 2: -0.5}),
    "one weight in float64, rank 1 by 3e-8": shift("weight", {1: 3e-8}),
    "a whole number among the buffers, rank 1 by 3": shift("count", {1: 3}),
    "a mask that is a buffer, on rank 1": flipped_mask,
    "a running mean, rank 1 by -0.25": shift("mean", {1: -0.25}),
    "a tensor attribute, rank 1 by 4": shift("table", {1: 4.0}),
    "a tensor attribute of the outermost module, rank 1 by 2": attribute(lambda model: model),
    "a tensor attribute of a submodule's submodule, rank 1 by 2": attribute(lambda model: model.inner.part),
    "a whole number that is a tensor attribute, rank 1 by 3": whole_number,
    "a model without any tensors": lambda model, rank: None,
}


def drive(function, what):
    """`function` is largest_gaps. What it returned, and whether it left the model as it was."""
    model = Model(nn.Identity if what == "a model without any tensors" else Layer)
    MADE[what](model, dist.get_rank())
    before = state(model)
    found = function(model)
    after = state(model)
    if isinstance(found, dict):
        found = {name: float(value) if torch.is_tensor(value) else value for name, value in found.items()}
    return {"found": found, "changed": next((what for what in before if before[what] != after[what]), None)}


def state(model):
    tensors = [*model.parameters(), *model.buffers(), *attributes(model)]
    return {
        "values": hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)).hexdigest(),
        "requires_grad": [tensor.requires_grad for tensor in tensors],
        "training": [module.training for module in model.modules()],
    }


def attributes(model):
    return [value for module in model.modules() for value in vars(module).values() if torch.is_tensor(value)]
