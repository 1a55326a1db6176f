"""Inside a rank, for 03.2: a model whose gradients stand where the case wants them, for the learner's functions."""

import ast
import functools
import sys

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
    "rank 0's gradients are all zero, and rank 1 has none of prose": {"prose": [0]},
    "what the two ranks have cancels": {},
}
FACTORS = {  # by rank
    "rank 0's gradients are all zero, and rank 1 has none of prose": (0.0, 1.0),
    "what the two ranks have cancels": (1.0, -1.0),
}
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


class SetOfRank(set):
    """A set in which texts stand in another order on rank 0 than on the others.

    Ranks that torchrun starts salt their hashes each for itself, so a set of names has as many orders as there are
    processes. The ranks here are forked from one, and would have the same.
    """

    def __iter__(self):
        values = list(super().__iter__())
        if all(isinstance(value, str) for value in values):
            values.sort(reverse=dist.get_rank() > 0)
        return iter(values)

    def pop(self):
        if not self:
            return super().pop()  # raises
        first = next(iter(self))
        self.remove(first)
        return first


def _of_rank(operation):
    def of_rank(*sets):
        result = getattr(set, operation)(*sets)
        return result if result is NotImplemented else SetOfRank(result)

    return of_rank


for _operation in ("union", "intersection", "difference", "symmetric_difference", "copy"):
    setattr(SetOfRank, _operation, _of_rank(_operation))
for _operation in ("or", "and", "sub", "xor"):
    for _side in ("", "r"):
        setattr(SetOfRank, f"__{_side}{_operation}__", _of_rank(f"__{_side}{_operation}__"))


class _SetsOfRank(ast.NodeTransformer):
    """{a, b} and {a for a in b} in the answer's text become SetOfRank, as set(...) does by its name."""

    def _made(self, node):
        self.generic_visit(node)
        made = ast.Call(ast.Name("set", ast.Load()), [node], [])
        return ast.fix_missing_locations(ast.copy_location(made, node))

    visit_Set = visit_SetComp = _made


@functools.cache
def with_sets_of_rank(function):
    """`function` of the answer, with sets that have an order of their own on each rank."""
    answer = vars(sys.modules["answer"])
    name = next(name for name, value in answer.items() if value is function)
    with open(answer["__file__"], encoding="utf-8") as file:
        tree = _SetsOfRank().visit(ast.parse(file.read()))
    answer["set"] = SetOfRank
    exec(compile(tree, answer["__file__"], "exec"), answer)
    return answer[name]


@functools.cache
def shared_model():
    """The model of all cases of a job, as a training has one for all steps."""
    return Branches()


def drive(function, case):
    """`function` is missing_gradients or synchronize_gradients. Returns its result, and .grad afterwards:
    (smallest, largest) value by name, or None."""
    model, rank, world = shared_model(), dist.get_rank(), dist.get_world_size()
    for number, (name, parameter) in enumerate(model.named_parameters()):
        has_gradient = rank in owners(case, world).get(name, [])
        parameter.grad = torch.full_like(parameter, gradient(case, number, rank)) if has_gradient else None
    result = with_sets_of_rank(function)(model)
    after = {
        name: None if parameter.grad is None else [parameter.grad.min().item(), parameter.grad.max().item()]
        for name, parameter in model.named_parameters()
    }
    return {"returned": result, "after": after}
