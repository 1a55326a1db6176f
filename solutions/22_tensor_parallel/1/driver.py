"""Inside a rank, for 22.1: the answer's layer and the whole one, trained side by side, and their sizes."""

import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ddp_course.grader.harness.tensors import largest_gap

WIDTH, HIDDEN, TOKENS = 6, 24, 5


def drive(build, steps):
    """Train the answer's layer and the whole one with SGD. Returns the gaps of each step, and the sizes of both.

    A step's gaps: of the bias of `second` before it, of the output, and of the gradient of the input.
    """
    torch.manual_seed(1)
    whole = Whole().double()
    x = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
    given = copy.deepcopy(whole)  # its layers belong to the answer, which may keep or change them
    layer = build(given.first, given.second)
    layer_size, whole_size = (sum(local(value).numel() for value in model.parameters()) for model in (layer, whole))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (whole, layer)]
    gaps = []
    for _ in range(steps):
        outputs, input_gradients = [], []
        biases = [local(bias).flatten() for bias in layer.parameters() if bias.numel() == WIDTH]  # one is of `second`
        bias_gap = min((largest_gap(bias, whole.second.bias) for bias in biases), default=0.0)
        for model, optimizer in zip((whole, layer), optimizers, strict=True):
            leaf = x.clone().requires_grad_()
            y = torch.cat([model(torch.tanh(half)) for half in leaf.split(1)])  # two calls before one backward
            optimizer.zero_grad()
            y.square().sum().backward()
            optimizer.step()
            outputs.append(y.detach())
            input_gradients.append(leaf.grad)
        rank_gaps = {
            "bias": bias_gap,
            "output": largest_gap(outputs[1], outputs[0]),
            "input": largest_gap(input_gradients[1], input_gradients[0]),
        }
        gaps.append({name: maximum_over_ranks(gap) for name, gap in rank_gaps.items()})
    return {"steps": gaps, "elements": layer_size, "whole": whole_size}


class Whole(nn.Module):
    """The layer in one process."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 2 * HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        gate, up = self.first(x).chunk(2, -1)
        return self.second(F.silu(gate) * up)


def local(parameter):
    """This rank's part of a parameter, which may be a DTensor."""
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def maximum_over_ranks(gap):
    largest = torch.tensor(gap, dtype=torch.float64)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return largest.item()
