"""Inside a rank, for 17.1: gradients of this rank's own samples, and an optimizer that notes what it is given."""

import torch
import torch.distributed as dist

SHAPES = [(5, 7), (7,), (3, 4, 2), (1,), (11,)]  # 78 elements: they divide by 1, 2 and 3, and not by 4 or 5


def drive(build, make, norms):
    """One update for each of `norms`, the largest gradient norms allowed: weights and norm after each, what is held.

    make: the name of the optimizer to be sharded.
    """
    rank, received = dist.get_rank(), []
    parameters = [torch.nn.Parameter(tensor) for tensor in start()]

    def make_optimizer(tensors):
        tensors = list(tensors)
        received.append(tensors)
        return OPTIMIZERS[make](tensors)

    sharded = build(list(parameters), make_optimizer)
    steps = []
    for step, max_norm in enumerate(norms):
        for parameter, gradient in zip(parameters, gradients(rank, step), strict=True):
            parameter.grad = gradient
        norm = sharded.step(max_norm)
        steps.append(([parameter.detach().clone() for parameter in parameters], float(norm)))
        for parameter in parameters:
            parameter.grad = None
    return {"steps": steps, "optimizer_elements": sum(tensor.numel() for tensors in received for tensor in tensors)}


OPTIMIZERS = {
    "AdamW": lambda tensors: torch.optim.AdamW(tensors, lr=0.01, weight_decay=0.1),
    "SGD": lambda tensors: torch.optim.SGD(tensors, lr=0.1, momentum=0.9),
}


def start():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]


def gradients(rank, step):
    """The gradients of `rank`; not of one size on all ranks, nor in all parameters."""
    generator = torch.Generator().manual_seed(100 * step + rank + 7)
    return [
        (1 + rank + number) * torch.randn(shape, generator=generator, dtype=torch.float64)
        for number, shape in enumerate(SHAPES)
    ]
