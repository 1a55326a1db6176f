"""Inside a rank, for 04.1: models that differ between the ranks in a known way."""

import torch
import torch.distributed as dist
from torch import nn

from ddp_course.grader.harness.tensors import fingerprint


class Layer(nn.Module):
    """A parameter, a frozen one, four buffers, and a tensor that is a plain attribute."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, dtype=torch.float64))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("mean", torch.zeros(4, dtype=torch.float64))
        self.register_buffer("count", torch.tensor(5))
        self.register_buffer("levels", torch.zeros(3, dtype=torch.int8))
        self.register_buffer("mask", torch.tensor([True, False]), persistent=False)
        self.table = torch.arange(3.0)
        self.part = nn.Identity()


class Model(nn.Module):
    def __init__(self, layer=Layer):
        super().__init__()
        self.inner = layer()
        self.name = "an attribute that is no tensor"


def shift(name, amounts):
    """A change of a model: adds amounts[rank] to the last element of a tensor of `inner`; rank -1 is the last one."""

    def change(model, rank):
        amount = amounts.get(rank, amounts.get(rank - dist.get_world_size(), 0))
        getattr(model.inner, name).data.view(-1)[-1] += amount

    return change


def shift_two_parameters(model, rank):
    shift("weight", {1: 0.5})(model, rank)
    shift("frozen", {1: 0.25})(model, rank)


def shift_with_sum_zero(model, rank):
    model.inner.weight.data += torch.tensor([0.75, -0.75, 0, 0]) * (rank == 1)


def add_attribute(module_of):
    """A change of a model: gives the module module_of(model) a tensor, of which one element is larger on rank 1."""

    def change(model, rank):
        module_of(model)._scale = torch.tensor([1.0, 2.0 * (rank == 1)])

    return change


def add_integer_attribute(model, rank):
    model.inner.steps = torch.tensor(7 + 3 * (rank == 1))


def flip_mask(model, rank):
    model.inner.mask ^= rank == 1


MODELS = {  # scenario: what is done to the model of each rank, the kind of tensor, the gap on 2 ranks and that on 3
    "nothing differs": (None, None, 0, 0),
    "a weight of rank 1 by 0.5, and a frozen one by 0.25": (shift_two_parameters, "parameters", 0.5, 0.5),
    "two weights of rank 1, by 0.75 and -0.75": (shift_with_sum_zero, "parameters", 0.75, 0.75),
    # From 1 to -1: the absolute values do not differ.
    "a frozen parameter of the last rank, by -2": (shift("frozen", {-1: -2.0}), "parameters", 2, 2),
    "one weight, rank 1 by 0.5 and rank 2 by -0.5": (shift("weight", {1: 0.5, 2: -0.5}), "parameters", 0.5, 1.0),
    "one weight, rank 0 by 0.5 and rank 2 by -0.5": (shift("weight", {0: 0.5, 2: -0.5}), "parameters", 0.5, 1.0),
    "one weight in float64, rank 1 by 3e-8": (shift("weight", {1: 3e-8}), "parameters", 3e-8, 3e-8),
    "a whole number among the buffers, rank 1 by 3": (shift("count", {1: 3}), "buffers", 3, 3),
    # From -100 to 100: the difference does not fit into 8 bits.
    "8-bit numbers in a buffer, rank 0 by 100 and the last rank by -100": (
        shift("levels", {0: 100, -1: -100}),
        "buffers",
        200,
        200,
    ),
    "a mask that is a buffer, on rank 1": (flip_mask, "buffers", 1, 1),
    "a running mean, rank 1 by -0.25": (shift("mean", {1: -0.25}), "buffers", 0.25, 0.25),
    "a tensor attribute, rank 1 by 4": (shift("table", {1: 4.0}), "attributes", 4, 4),
    "a tensor attribute of the outermost module, rank 1 by 2": (add_attribute(lambda model: model), "attributes", 2, 2),
    "a tensor attribute of a submodule's submodule, rank 1 by 2": (
        add_attribute(lambda model: model.inner.part),
        "attributes",
        2,
        2,
    ),
    "a whole number that is a tensor attribute, rank 1 by 3": (add_integer_attribute, "attributes", 3, 3),
    "a model without any tensors": (None, None, 0, 0),
}


def drive(largest_gaps, scenario):
    """The result of largest_gaps, and the part of the model's state that it has changed, or None."""
    model = Model(nn.Identity if scenario == "a model without any tensors" else Layer)
    change, *_ = MODELS[scenario]
    if change:
        change(model, dist.get_rank())
    old = state(model)
    gaps = largest_gaps(model)
    new = state(model)
    if isinstance(gaps, dict):
        gaps = {name: float(value) if torch.is_tensor(value) else value for name, value in gaps.items()}
    return {"gaps": gaps, "changed": next((part for part in old if old[part] != new[part]), None)}


def state(model):
    """The state of a model by its parts, in a form that can be compared."""
    tensors = [*model.parameters(), *model.buffers(), *attributes(model)]
    return {
        "values": fingerprint(tensors),
        "requires_grad": [tensor.requires_grad for tensor in tensors],
        "training mode": [module.training for module in model.modules()],
    }


def attributes(model):
    """The tensors that are plain attributes of a module."""
    return [value for module in model.modules() for value in vars(module).values() if torch.is_tensor(value)]
