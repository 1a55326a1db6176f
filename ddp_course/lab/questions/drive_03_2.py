"""Inside a rank, for 03.2: a model whose gradients stand where the case wants them, for the learner's functions."""

import functools

import torch
import torch.distributed as dist
from torch import nn

# On which ranks a parameter has a gradient, by the name of the case; what is not named, on all.
CASES = {
    "every rank has every gradient": {},
    "rank 0 trained on code, rank 1 on prose": {"code": [0], "prose": [1]},
    "rank 1 has no gradient of prose": {"prose": [0]},
    "rank 0 has no gradient at all": {"shared": [1], "code": [1], "prose": [1], "small": [1]},
    "nobody has a gradient of prose": {"prose": []},
    "rank 0 trained on code, and nobody on prose": {"code": [0], "prose": []},
    "the branch of rank 1 is smaller": {"code": [0], "small": [1]},
    "only the last of three ranks trained on prose": {"prose": [2]},
    "of three ranks, two trained on code and one on prose": {"code": [0, 2], "prose": [1]},
    "rank 0's gradients are all zero": {},
    "what the two ranks have cancels": {},
}
FACTORS = {"rank 0's gradients are all zero": (0.0, 1.0), "what the two ranks have cancels": (1.0, -1.0)}  # by rank
PARTS = {"shared": (3, 3), "code": (3, 1), "prose": (3, 1), "small": (2, 1)}


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        for name, (inputs, outputs) in PARTS.items():
            self.add_module(name, nn.Linear(inputs, outputs))
        self.frozen = nn.Linear(2, 2).requires_grad_(False)


def owners(case, world):
    """{name of a parameter: ranks that have a gradient}"""
    where = CASES[case]
    return {
        f"{part}.{kind}": [rank for rank in range(world) if part not in where or rank in where[part]]
        for part in PARTS
        for kind in ("weight", "bias")
    }


def gradient(case, number, rank):
    """Unlike for every parameter and rank, and exact in floats."""
    return 10.0 * (number + 1) * FACTORS[case][rank] if case in FACTORS else 10.0 * (number + 1) + rank


@functools.cache
def the_model():
    """One for all cases of a job, as a training has one for all steps."""
    return Branches()


def drive(function, case):
    """`function` is missing_gradients or synchronize_gradients. What it returns, and what .grad holds afterwards:
    (smallest, largest) value by name, or None."""
    model, rank, world = the_model(), dist.get_rank(), dist.get_world_size()
    for number, (name, parameter) in enumerate(model.named_parameters()):
        has_one = rank in owners(case, world).get(name, [])
        parameter.grad = torch.full_like(parameter, gradient(case, number, rank)) if has_one else None
    result = function(model)
    after = {
        name: None if parameter.grad is None else [parameter.grad.min().item(), parameter.grad.max().item()]
        for name, parameter in model.named_parameters()
    }
    return {"returned": result, "after": after}
