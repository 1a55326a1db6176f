"""DDP around a model, its buckets in their final order before the first step, so that all steps add up alike."""

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddp_course.distributed.process_group import World


def wrap(world: World, model: nn.Module, *example: Tensor) -> nn.Module:
    """Wrap `model` in DDP, or for one process return the model itself (collective).

    DDP copies rank 0's weights to all ranks here, and averages the gradients in every backward pass.
    example: arguments of `model` as in training, of any values.
    """
    if world.size == 1:
        return model
    ddp_model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    settle_bucket_order(ddp_model, *example)
    return ddp_model


def settle_bucket_order(ddp_model: DistributedDataParallel, *inputs: Tensor) -> None:
    """Do a forward and a backward pass that count for nothing. Call it on every rank, before the first step.

    DDP puts its gradients into buckets in an order of its own choosing, and chooses anew after the first backward pass
    of its life. The place of a gradient in its bucket decides in which order three or more ranks add it up. So the
    first step after construction is rounded unlike all others; and since the first step of a resumed run was a
    later one of the run that never stopped, the two would differ in their last bits. With two ranks there is only one
    order, and nothing to see.

    inputs: arguments of `ddp_model`. Random numbers and gradients are left as if this had not happened. Buffers that a
    forward pass changes (BatchNorm's) are not.
    """
    with torch.random.fork_rng(devices=[inputs[0].device] if inputs[0].is_cuda else []):
        ddp_model(*inputs).sum().backward()
    ddp_model.zero_grad(set_to_none=True)
