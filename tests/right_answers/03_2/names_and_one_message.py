# route: gathers sets of names; sends one flat tensor with a count of owners behind each gradient

import torch
import torch.distributed as dist


def missing_gradients(model):
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, {name for name, p in model.named_parameters() if p.grad is not None})
    some, all_of_them = set.union(*everyones), set.intersection(*everyones)
    return {name: [r for r, names in enumerate(everyones) if name not in names] for name in some - all_of_them}


def synchronize_gradients(model):
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    parts = []
    for parameter in trainable:
        has = parameter.grad is not None
        parts += [parameter.grad.flatten() if has else torch.zeros(parameter.numel()), torch.tensor([float(has)])]
    flat = torch.cat(parts)
    dist.all_reduce(flat)
    pieces = flat.split([part.numel() for part in parts])
    for parameter, gradient, count in zip(trainable, pieces[::2], pieces[1::2], strict=True):
        parameter.grad = (gradient / dist.get_world_size()).view_as(parameter) if count > 0 else None
