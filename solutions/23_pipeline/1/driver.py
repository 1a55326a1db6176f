"""Inside a rank, for 23.1: a stage that notes what it computes and what autograd holds for it, and one process."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

FEATURES, WIDTH, CLASSES, LAYERS = 5, 6, 3, 4


def drive(one_batch, sizes, batches):
    """`batches` of micro-batches with `sizes` samples, whose gradients add up. After each batch, the gap of the
    gradients; of all, the order of work ("F0": forward of micro-batch 0) and the most micro-batches held at once."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    widths = [FEATURES, *[WIDTH] * (LAYERS - 1), CLASSES]
    layers = [nn.Linear(*pair).double() for pair in zip(widths, widths[1:], strict=False)]
    own = layers[LAYERS * rank // ranks : LAYERS * (rank + 1) // ranks]
    stage, gaps = Stage(own, ends=rank == ranks - 1), []
    right = {parameter: torch.zeros_like(parameter) for parameter in stage.parameters()}
    for number in range(batches):
        generator = torch.Generator().manual_seed(number)
        inputs = torch.randn(sum(sizes), FEATURES, generator=generator, dtype=torch.float64)
        targets = torch.randint(CLASSES, (sum(sizes),), generator=generator)
        whole = F.cross_entropy(compute(layers, inputs, ends=True), targets)
        for gradient, total in zip(torch.autograd.grad(whole, list(right)), right.values(), strict=True):
            total += gradient
        one_batch(stage, F.cross_entropy, list(inputs.split(sizes)), list(targets.split(sizes)), WIDTH)
        gaps.append(max(gap(total, parameter.grad) for parameter, total in right.items()))
    return {"gaps": gaps, "order": stage.order, "live": stage.most}


def compute(layers, x, ends):
    """ends: the last of `layers` is that of the model, and gives logits."""
    for layer in layers[:-1]:
        x = torch.tanh(layer(x))
    return layers[-1](x) if ends else torch.tanh(layers[-1](x))


class Stage(nn.Module):
    def __init__(self, layers, ends):
        super().__init__()
        self.layers, self.ends = nn.ModuleList(layers), ends
        self.order, self.saved, self.calls, self.most = [], {}, 0, 0

    def forward(self, x):
        number, self.calls = self.calls, self.calls + 1
        self.order.append(f"F{number}")
        with saved_tensors_hooks(lambda tensor: Saved(tensor, number, self.saved), lambda saved: saved.tensor):
            y = compute(self.layers, x, self.ends)
        if y.requires_grad:
            y.register_hook(lambda _: self.order.append(f"B{number}"))
        self.most = max(self.most, len(self.saved))
        return y


class Saved:
    """A tensor that autograd keeps for the backward of a micro-batch; `counts` has how many there are, by number."""

    def __init__(self, tensor, number, counts):
        self.tensor, self.number, self.counts = tensor, number, counts
        counts[number] = counts.get(number, 0) + 1

    def __del__(self):
        self.counts[self.number] -= 1
        if not self.counts[self.number]:
            del self.counts[self.number]


def gap(right, own):
    """Infinite if it is missing or has another shape."""
    return float("inf") if own is None or own.shape != right.shape else (own - right).abs().max().item()
