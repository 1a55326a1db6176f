"""Inside a rank, for 23.2: a stage of a small tied model, and after each step its gap to one process."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ddp_course.grader.harness.tensors import largest_gap

VOCABULARY, WIDTH, LENGTH, WINDOWS, LAYERS, MICRO_BATCHES = 40, 8, 5, 8, 3, 4


def drive(build, padded, steps, optimizer, settings):
    """For each step the gaps of table and layers to one process, and the number of windows in each call of the stage.

    In the first step torch calls the stage once more, to learn the shape of its output.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    one_process = Stage(range(LAYERS), first=True, last=True)
    layer_numbers = range(LAYERS * rank // ranks, LAYERS * (rank + 1) // ranks)
    stage = Stage(layer_numbers, first=rank == 0, last=rank == ranks - 1)
    optimizers = [getattr(torch.optim, optimizer)(model.parameters(), **settings) for model in (one_process, stage)]
    pipeline = build(stage, optimizers[1], MICRO_BATCHES)
    reports, right = [], dict(one_process.named_parameters())
    for step in range(steps):
        inputs, targets = batch(step, padded)
        optimizers[0].zero_grad()
        F.cross_entropy(one_process(inputs).flatten(0, 1), targets.flatten()).backward()
        optimizers[0].step()
        stage.calls.clear()
        pipeline.step(inputs.clone(), targets.clone())
        gaps = {name: largest_gap(parameter, right[name]) for name, parameter in stage.named_parameters()}
        reports.append({"table": gaps.pop("table", 0.0), "layers": max(gaps.values()), "calls": list(stage.calls)})
    return reports


class Stage(nn.Module):
    """Layers of the model, drawn alike on all ranks; the first stage and the last one have the table."""

    def __init__(self, layer_numbers, first, last):
        super().__init__()
        torch.manual_seed(1)
        table = torch.randn(VOCABULARY, WIDTH, dtype=torch.float64) / WIDTH**0.5
        layers = [nn.Linear(WIDTH, WIDTH).double() for _ in range(LAYERS)]
        self.layers = nn.ModuleDict({str(number): layers[number] for number in layer_numbers})
        self.table = nn.Parameter(table) if first or last else None
        self.first, self.last, self.calls = first, last, []

    def forward(self, x):
        self.calls.append(len(x))
        x = F.embedding(x, self.table) if self.first else x
        for layer in self.layers.values():
            x = x + torch.tanh(layer(x))
        return F.linear(x, self.table) if self.last else x


def batch(step, padded):
    """Inputs and targets, two windows for each micro-batch.

    padded: a window has 0 to 5 targets, in the first micro-batch always 0
    """
    generator = torch.Generator().manual_seed(step)
    inputs, targets = torch.randint(VOCABULARY, (2, WINDOWS, LENGTH), generator=generator)
    if padded:
        lengths = torch.tensor([0, 0, 1, 2, 3, 4, 5, 5])[:, None] - [0, 1, 2, 0][step]
        targets[torch.arange(LENGTH) >= lengths] = -100
    return inputs, targets
