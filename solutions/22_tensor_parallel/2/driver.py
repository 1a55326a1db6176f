"""Inside a rank, for 22.2: gradients of weights that are cut, and of weights that every rank holds."""

import torch
import torch.distributed as dist

WHOLE = {"norm": (6,), "bias": (6,), "frozen": (3, 2)}  # every rank holds all of it
CUT = {"first": (12, 6), "second": (12, 5), "scale": (12,)}  # cut along the first dimension
MANY, MORE = "many weights", {f"bias {number}": (12,) for number in range(9)}  # these are cut too, in one case
ZERO = "all gradients are zero"


def drive(clip, max_norm, scenario):
    rank, world = dist.get_rank(), dist.get_world_size()
    parameters, names = [], []
    for name, gradient in gradients(scenario).items():
        own = gradient.chunk(world)[rank].clone() if name not in WHOLE else gradient.clone()
        parameter = torch.nn.Parameter(torch.zeros_like(own))
        parameter.cut, parameter.grad = name not in WHOLE, None if name == "frozen" else own
        parameters.append(parameter)
        names.append(name)
    norm = clip(parameters, max_norm)
    named = zip(names, parameters, strict=True)
    return {"norm": float(norm), "gradients": {name: weight.grad for name, weight in named if name != "frozen"}}


def gradients(scenario):
    """The gradients of one process, by name."""
    seed = int(scenario.split()[-1]) + 3 if scenario.startswith("batch") else 3
    generator, named = torch.Generator().manual_seed(seed), {}
    for number, (name, shape) in enumerate({**CUT, **WHOLE, **(MORE if scenario == MANY else {})}.items()):
        named[name] = (1 + number) * torch.randn(shape, generator=generator, dtype=torch.float64)
    if scenario == ZERO:
        named = {name: torch.zeros_like(gradient) for name, gradient in named.items()}
    if scenario == "nothing is cut":
        named = {name: gradient for name, gradient in named.items() if name in WHOLE}
    if scenario == "everything is cut":
        named = {name: gradient for name, gradient in named.items() if name in CUT}
    return named
