"""Inside a rank, for 25.2: the gradients of a few steps before and after TopK, and what the rank keeps."""

import torch
import torch.distributed as dist

SHAPES = {"bias": (2,), "first": (4, 5), "second": (4, 5)}  # one with fewer numbers than are sent; two of one shape
STEPS, K = 6, 3
MISSING = {("first", 1), ("first", 3), ("second", 3), ("second", 4)}  # (name, step) without a gradient in SOME
EVERY_ONE, SOME = "every parameter has a gradient", "some have none at times"
TIES = "many numbers are equally large"  # whole numbers, the same on all ranks
ZEROS = "fewer than k numbers of a gradient are not zero"  # as those of an embedding: all others are equally large


def drive(build, scenario):
    """After each step the gradients that the learner's TopK leaves, and the numbers that it keeps, by name."""
    parameters = [torch.nn.Parameter(torch.zeros(shape, dtype=torch.float64)) for shape in SHAPES.values()]
    top_k, reports = build(parameters, K), []
    for step in range(STEPS):
        for parameter, gradient in zip(parameters, gradients(scenario, step, dist.get_rank()).values(), strict=True):
            parameter.grad = gradient
        top_k.reduce()
        reduced = [None if parameter.grad is None else parameter.grad.clone() for parameter in parameters]
        kept = [tensor.detach().clone() for tensor in top_k.kept]
        reports.append(
            {"reduced": dict(zip(SHAPES, reduced, strict=True)), "kept": dict(zip(SHAPES, kept, strict=True))}
        )
    return reports


def gradients(scenario, step, rank):
    """The gradients of one rank, by name; None where there is none, on any rank."""
    generator = torch.Generator().manual_seed(100 * (0 if scenario == TIES else rank) + step)
    by_name = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in SHAPES.items()}
    if scenario == ZEROS:
        by_name = {
            name: gradient.where(torch.arange(gradient.numel()).view(gradient.shape) % 11 == step, 0)
            for name, gradient in by_name.items()
        }
    if scenario == TIES:
        by_name = {name: gradient.round() for name, gradient in by_name.items()}
    missing = MISSING if scenario == SOME else ()
    return {name: None if (name, step) in missing else gradient for name, gradient in by_name.items()}
