"""Inside a rank, for 22.2: gradients of weights that are cut, and of weights that every rank holds."""

import torch
import torch.distributed as dist

WHOLE = {"norm": (6,), "bias": (6,)}  # every rank holds all of it
CUT = {"first": (12, 6), "second": (12, 5), "scale": (12,)}  # cut along the first dimension
MANY, MORE_CUT = "many weights", {f"bias {number}": (12,) for number in range(9)}  # cut too, in this scenario only
ZERO, FROZEN = "all gradients are zero", "frozen"  # the frozen weight has no gradient


def drive(clip, max_norm, scenario):
    """The norm that the learner's clip returned, and the gradients after it, by name; None for the frozen weight."""
    rank, world = dist.get_rank(), dist.get_world_size()
    parameters = {FROZEN: torch.nn.Parameter(torch.zeros(3, 2, dtype=torch.float64))}
    parameters[FROZEN].cut = False
    for name, gradient in gradients(scenario).items():
        local = gradient.clone() if name in WHOLE else gradient.chunk(world)[rank].clone()
        parameters[name] = torch.nn.Parameter(torch.zeros_like(local))
        parameters[name].cut = name not in WHOLE
        parameters[name].grad = local
    norm = clip(list(parameters.values()), max_norm)
    return {"norm": float(norm), "gradients": {name: parameter.grad for name, parameter in parameters.items()}}


def gradients(scenario):
    """The gradients of one process, by name."""
    seed = int(scenario.split()[-1]) + 3 if scenario.startswith("batch") else 3
    generator, by_name = torch.Generator().manual_seed(seed), {}
    for number, (name, shape) in enumerate({**CUT, **WHOLE, **(MORE_CUT if scenario == MANY else {})}.items()):
        by_name[name] = (1 + number) * torch.randn(shape, generator=generator, dtype=torch.float64)
    if scenario == ZERO:
        by_name = {name: torch.zeros_like(gradient) for name, gradient in by_name.items()}
    if scenario == "nothing is cut":
        by_name = {name: gradient for name, gradient in by_name.items() if name in WHOLE}
    if scenario == "everything is cut":
        by_name = {name: gradient for name, gradient in by_name.items() if name in CUT}
    return by_name
