# mistake: the detector takes a gradient of zeros for none
# state: wrong
# check: names what is missing
# message: (rank 0's gradients are all zero): missing_gradients returned {'shared.weight': [0]

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
    mine = torch.tensor([parameter.grad is not None and bool(parameter.grad.any()) for parameter in model.parameters()])
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, mine)
    names = [name for name, _ in model.named_parameters()]
    return dict(zip(names, torch.stack(everyones, dim=1).tolist(), strict=True))


def synchronize_gradients(model) -> None:
    """After backward, on every rank: replace each gradient by the mean over the ranks; none counts as zero."""
    has_one = owners(model)
    for name, parameter in model.named_parameters():
        if any(has_one[name]):  # every rank comes to the same decision: it asks what all have, not what it has
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
