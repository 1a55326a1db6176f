"""Wrap a model in DDP and rebuild its buckets before the first step: every step then adds gradients in one order."""

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddp_course.distributed.process_group import World


def wrap(world: World, model: nn.Module, *inputs: Tensor) -> nn.Module:
    """Wrap `model` in DDP, or for one process return the model itself (collective).

    DDP copies rank 0's weights to all ranks here, and averages the gradients in every backward pass.
    inputs: arguments of `model` as in training, of any values.
    """
    if world.size == 1:
        return model
    ddp_model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    settle_bucket_order(ddp_model, *inputs)
    return ddp_model


def settle_bucket_order(ddp_model: DistributedDataParallel, *inputs: Tensor) -> None:
    """Make DDP rebuild its buckets now: run a forward and a backward pass and drop the gradients (collective).

    Call it on every rank, before the first step. DDP rebuilds its buckets once, after the first backward pass, and the
    position of a gradient in its bucket decides in which order three or more ranks add it up. So the first step after
    construction is rounded differently from all others. The first step of a resumed run was a later step of the run
    that never stopped, and the two runs would differ in their last bits. Two ranks can add in only one order.

    inputs: arguments of `ddp_model`. The random state is restored. Buffers that a forward pass changes (BatchNorm's)
    stay changed.
    """
    with torch.random.fork_rng(devices=[inputs[0].device] if inputs[0].is_cuda else []):
        ddp_model(*inputs).sum().backward()
    ddp_model.zero_grad(set_to_none=True)
