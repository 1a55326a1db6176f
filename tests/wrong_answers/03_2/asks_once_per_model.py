# mistake: asks who has which gradient in the first step only
# state: wrong
# check: what nobody used stays none
# message: no rank had a gradient of prose.weight; after synchronize_gradients it is 0

import torch
import torch.distributed as dist


def missing_gradients(model) -> dict[str, list[int]]:
    """By name of a parameter that some ranks have a gradient for and others not: the ranks that have none."""
    return {
        name: [rank for rank, has in enumerate(by_rank) if not has]
        for name, by_rank in owners(model).items()
        if any(by_rank) and not all(by_rank)
    }


def owners(model) -> dict[str, list[bool]]:
    """For each parameter: on which ranks it has a gradient. One small all-gather; the same answer on every rank."""
    mine = torch.tensor([parameter.grad is not None for parameter in model.parameters()])
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, mine)
    names = [name for name, _ in model.named_parameters()]
    return dict(zip(names, torch.stack(everyones, dim=1).tolist(), strict=True))


def synchronize_gradients(model) -> None:
    """After backward, on every rank: replace each gradient by the mean over the ranks; none counts as zero."""
    if not hasattr(model, "_owners"):
        model._owners = owners(model)  # ask once: it costs a message
    has_one = model._owners
    for name, parameter in model.named_parameters():
        if any(has_one[name]):  # every rank comes to the same decision: it asks what all have, not what it has
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
