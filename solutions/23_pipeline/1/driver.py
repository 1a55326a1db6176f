"""Inside a rank, for 23.1: a stage that notes its order of work and what autograd holds for it, and one process."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from ddp_course.grader.harness.tensors import largest_gap

FEATURES, WIDTH, CLASSES, LAYERS = 5, 6, 3, 4


def drive(one_batch, sizes, batches):
    """Call the answer for `batches` batches, each cut into micro-batches of `sizes` samples; their gradients add up.

    Returns the gaps of the gradients after each batch, the order of work ("F0" is the forward of micro-batch 0), and
    the largest number of micro-batches held at once.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    widths = [FEATURES, *[WIDTH] * (LAYERS - 1), CLASSES]
    layers = [nn.Linear(*pair).double() for pair in zip(widths, widths[1:], strict=False)]
    stage_layers = layers[LAYERS * rank // ranks : LAYERS * (rank + 1) // ranks]
    stage, gaps = Stage(stage_layers, is_last=rank == ranks - 1), []
    right = {parameter: torch.zeros_like(parameter) for parameter in stage.parameters()}
    for number in range(batches):
        generator = torch.Generator().manual_seed(number)
        inputs = torch.randn(sum(sizes), FEATURES, generator=generator, dtype=torch.float64)
        targets = torch.randint(CLASSES, (sum(sizes),), generator=generator)
        loss = F.cross_entropy(compute(layers, inputs, is_last=True), targets)
        for gradient, total in zip(torch.autograd.grad(loss, list(right)), right.values(), strict=True):
            total += gradient
        one_batch(stage, F.cross_entropy, list(inputs.split(sizes)), list(targets.split(sizes)), WIDTH)
        gaps.append(max(largest_gap(parameter.grad, total) for parameter, total in right.items()))
    return {"gaps": gaps, "order": stage.order, "most_held": stage.most_held}


def compute(layers, x, is_last):
    """The output of these layers. is_last: the last of them is that of the model, and gives logits."""
    for layer in layers[:-1]:
        x = torch.tanh(layer(x))
    return layers[-1](x) if is_last else torch.tanh(layers[-1](x))


class Stage(nn.Module):
    def __init__(self, layers, is_last):
        super().__init__()
        self.layers, self.is_last = nn.ModuleList(layers), is_last
        self.order, self.saved_counts, self.calls, self.most_held = [], {}, 0, 0

    def forward(self, x):
        number, self.calls = self.calls, self.calls + 1
        self.order.append(f"F{number}")
        with saved_tensors_hooks(lambda tensor: SavedTensor(tensor, number, self.saved_counts), lambda s: s.tensor):
            y = compute(self.layers, x, self.is_last)
        if y.requires_grad:
            y.register_hook(lambda _: self.order.append(f"B{number}"))
        self.most_held = max(self.most_held, len(self.saved_counts))
        return y


class SavedTensor:
    """A tensor that autograd keeps for backward; `counts`: how many there are, by the number of the micro-batch."""

    def __init__(self, tensor, number, counts):
        self.tensor, self.number, self.counts = tensor, number, counts
        counts[number] = counts.get(number, 0) + 1

    def __del__(self):
        self.counts[self.number] -= 1
        if not self.counts[self.number]:
            del self.counts[self.number]
