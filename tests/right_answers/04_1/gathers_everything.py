# route: gathers all tensors as objects and compares every pair

import itertools

import torch
import torch.distributed as dist


def forecast():
    result = dict.fromkeys(["parameters, DDP", "buffers, DDP", "dropout masks, one seed on every rank"], "closed")
    result["attributes, DDP"] = result["parameters, DDP(init_sync=False)"] = "as it was"
    result["parameters, averaged by hand"] = "as it was"
    return result


def largest_gaps(model):
    mine = {"parameters": [], "buffers": [], "attributes": []}
    for _, module in model.named_modules():
        mine["parameters"] += [p.detach() for p in module.parameters(recurse=False)]
        mine["buffers"] += list(module.buffers(recurse=False))
        mine["attributes"] += [x for x in module.__dict__.values() if isinstance(x, torch.Tensor)]
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, mine)
    gaps = {kind: torch.tensor(0.0, dtype=torch.float64) for kind in mine}
    for one, other in itertools.combinations(everyones, 2):
        for kind in mine:
            for a, b in zip(one[kind], other[kind], strict=True):
                gaps[kind] = torch.maximum(gaps[kind], (a.double() - b.double()).abs().max())
    return gaps
