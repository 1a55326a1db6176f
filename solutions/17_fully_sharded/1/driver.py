"""Inside a rank, for 17.1: gradients of this rank's own samples, and an optimizer that notes what it is given."""

import torch
import torch.distributed as dist

SHAPES = [(5, 7), (7,), (3, 4, 2), (1,), (11,)]  # 78 elements: divisible by 2 and 3 ranks, not by 4


def drive(build, optimizer_name, max_norms):
    """The weights and the norm after a step for each of `max_norms`, and how many elements the torch optimizer got.

    build: the learner's class.
    """
    rank, received = dist.get_rank(), []
    parameters = [torch.nn.Parameter(tensor) for tensor in initial_weights()]

    def make_optimizer(tensors):
        tensors = list(tensors)
        received.append(tensors)
        return OPTIMIZERS[optimizer_name](tensors)

    sharded = build(list(parameters), make_optimizer)
    steps = []
    for step, max_norm in enumerate(max_norms):
        for parameter, gradient in zip(parameters, gradients(rank, step), strict=True):
            parameter.grad = gradient
        norm = sharded.step(max_norm)
        steps.append(([parameter.detach().clone() for parameter in parameters], norm))
        for parameter in parameters:
            parameter.grad = None
    return {"steps": steps, "optimizer_elements": sum(tensor.numel() for tensors in received for tensor in tensors)}


OPTIMIZERS = {
    "AdamW": lambda tensors: torch.optim.AdamW(tensors, lr=0.01, weight_decay=0.1),
    "SGD": lambda tensors: torch.optim.SGD(tensors, lr=0.1, momentum=0.9),
}


def initial_weights():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]


def gradients(rank, step):
    """The gradients of `rank`. Their size depends on the rank and on the parameter."""
    generator = torch.Generator().manual_seed(100 * step + rank + 7)
    return [
        (1 + rank + number) * torch.randn(shape, generator=generator, dtype=torch.float64)
        for number, shape in enumerate(SHAPES)
    ]
