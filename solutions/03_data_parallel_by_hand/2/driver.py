"""Inside a rank, for 03.2: a model with gradients on the ranks that a scenario names, for the learner's functions."""

import ast
import functools
import sys

import torch
import torch.distributed as dist
from torch import nn

CASES = {  # scenario: {part of the model: ranks that have its gradients}; the other parts have theirs on every rank
    "every rank has every gradient": {},
    "rank 0 trained on code, rank 1 on prose": {"code": [0], "prose": [1]},
    "rank 1 has no gradient of prose": {"prose": [0]},
    "rank 0 has no gradient at all": {"shared": [1], "code": [1], "prose": [1], "small": [1]},
    "no rank has a gradient of prose": {"prose": []},
    "rank 0 trained on code, and no rank on prose": {"code": [0], "prose": []},
    "the branch of rank 1 is smaller": {"code": [0], "small": [1]},
    "only the last of three ranks trained on prose": {"prose": [2]},
    "of three ranks, two trained on code and one on prose": {"code": [0, 2], "prose": [1]},
    "rank 0's gradients are all zero, and rank 1 has none of prose": {"prose": [0]},
    "what the two ranks have cancels": {},
}
FACTORS = {  # scenario: by rank, the factor of its gradients
    "rank 0's gradients are all zero, and rank 1 has none of prose": (0.0, 1.0),
    "what the two ranks have cancels": (1.0, -1.0),
}
PARTS = {"shared": (3, 3), "code": (3, 1), "prose": (3, 1), "small": (2, 1)}  # inputs and outputs of each layer


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        for name, (inputs, outputs) in PARTS.items():
            self.add_module(name, nn.Linear(inputs, outputs))
        self.frozen = nn.Linear(2, 2).requires_grad_(False)


def owners(scenario, world):
    """{name of a trainable parameter: ranks that have its gradient}"""
    ranks_of = CASES[scenario]
    return {
        f"{part}.{kind}": [rank for rank in range(world) if part not in ranks_of or rank in ranks_of[part]]
        for part in PARTS
        for kind in ("weight", "bias")
    }


def gradient(scenario, number, rank):
    """The value of each element of the gradient of parameter `number`. Except in FACTORS it differs between ranks.

    Most values are thirds, which a dtype shorter than the model's rounds.
    """
    if scenario in FACTORS:
        return 10 * (number + 1) / 3 * FACTORS[scenario][rank]
    return (10 * (number + 1) + rank) / 3


class SetOfRank(set):
    """A set that iterates over strings in another order on rank 0 than on the other ranks.

    Python salts the hashes of strings differently in each process that torchrun starts, so the order of a set of names
    differs between ranks. The ranks here are forked from one process and would have the same order.
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


def _returning_set_of_rank(method):
    """The method of `set` that is called `method`, with a SetOfRank as its result."""

    def call(*sets):
        result = getattr(set, method)(*sets)
        return result if result is NotImplemented else SetOfRank(result)

    return call


_OPERATORS = [f"__{side}{operator}__" for operator in ("or", "and", "sub", "xor") for side in ("", "r")]
for _method in ("union", "intersection", "difference", "symmetric_difference", "copy", *_OPERATORS):
    setattr(SetOfRank, _method, _returning_set_of_rank(_method))


class _SetsOfRank(ast.NodeTransformer):
    """Replace {a, b} and {a for a in b} by set({a, b}) and set({a for a in b}): there the name `set` is SetOfRank."""

    def _call_set(self, node):
        self.generic_visit(node)
        call = ast.Call(ast.Name("set", ast.Load()), [node], [])
        return ast.fix_missing_locations(ast.copy_location(call, node))

    visit_Set = visit_SetComp = _call_set


@functools.cache
def with_sets_of_rank(function):
    """`function` of the answer, compiled again so that its sets are SetOfRank."""
    answer = vars(sys.modules["answer"])
    function = getattr(function, "__wrapped__", function)  # the harness wraps it, and the answer may have decorated it
    name = next(name for name, value in answer.items() if value is function)
    with open(answer["__file__"], encoding="utf-8") as file:
        tree = _SetsOfRank().visit(ast.parse(file.read()))
    answer["set"] = SetOfRank
    exec(compile(tree, answer["__file__"], "exec"), answer)
    return answer[name]


@functools.cache
def shared_model():
    """The one model of all calls of a job, as a training has one model for all steps. Its dtype is not the default."""
    return Branches().double()


def drive(function, scenario):
    """The return value of missing_gradients or synchronize_gradients, and the gradients after it.

    after: {name of a parameter: [smallest, largest] value of its gradient, or None}
    """
    model, rank, world = shared_model(), dist.get_rank(), dist.get_world_size()
    for number, (name, parameter) in enumerate(model.named_parameters()):
        has_gradient = rank in owners(scenario, world).get(name, [])
        parameter.grad = torch.full_like(parameter, gradient(scenario, number, rank)) if has_gradient else None
    returned = with_sets_of_rank(function)(model)
    after = {
        name: None if parameter.grad is None else [parameter.grad.min().item(), parameter.grad.max().item()]
        for name, parameter in model.named_parameters()
    }
    return {"returned": returned, "after": after}
