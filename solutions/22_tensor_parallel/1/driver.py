"""Inside a rank, for 22.1: the answer's layer and the whole one, trained side by side, and their sizes."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

WIDTH, HIDDEN, TOKENS = 6, 24, 5


def drive(build, steps):
    """Train the answer's layer and the whole one with SGD. Returns the gaps of each step, and the sizes of both.

    A step's gaps: of the bias of `second` before it, of the output, and of the gradient of the input.
    """
    torch.manual_seed(1)
    whole = Whole().double()
    x = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
    layer = build(whole.first, whole.second)
    layer_size, whole_size = (sum(parameter.numel() for parameter in model.parameters()) for model in (layer, whole))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (whole, layer)]
    gaps = []
    for _ in range(steps):
        outputs, input_gradients = [], []
        biases = [bias.detach().flatten() for bias in layer.parameters() if bias.numel() == WIDTH]  # one is of `second`
        right = whole.second.bias.detach().clone()
        bias = min(biases, key=lambda bias: (bias - right).abs().max(), default=right)
        bias_gap = gap(right, bias)
        for model, optimizer in zip((whole, layer), optimizers, strict=True):
            leaf = x.clone().requires_grad_()
            y = model(torch.tanh(leaf))
            optimizer.zero_grad()
            y.square().sum().backward()
            optimizer.step()
            outputs.append(y.detach())
            input_gradients.append(leaf.grad)
        gaps.append({"bias": bias_gap, "output": gap(*outputs), "input": gap(*input_gradients)})
    return {"steps": gaps, "elements": layer_size, "whole": whole_size}


class Whole(nn.Module):
    """The layer in one process."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 2 * HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        gate, up = self.first(x).chunk(2, -1)
        return self.second(F.silu(gate) * up)


def gap(right, tensor):
    """The largest difference over all ranks; infinite if `tensor` is missing or has another shape. A collective."""
    fits = tensor is not None and tensor.shape == right.shape
    distance = (tensor - right).abs().max().item() if fits else float("inf")
    largest = torch.tensor(distance, dtype=torch.float64)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return largest.item()
