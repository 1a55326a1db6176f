"""Broadcast rank 0's model to all ranks: parameters and buffers of any dtype."""

from collections.abc import Iterable, Set
from itertools import zip_longest

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_course.distributed.replica_check import ReplicasDiffer
from ddp_course.distributed.sync import gather_objects


@torch.no_grad()
def broadcast_tensors(tensors: Iterable[Tensor], sources: Iterable[int]) -> None:
    """Overwrite each tensor by that of its source rank. All broadcasts start before the first is awaited."""
    pending = []
    for tensor, source in zip(tensors, sources, strict=True):
        message = tensor.detach().contiguous()  # the tensor itself, if it is contiguous
        # As bytes: a broadcast computes nothing, so the dtype does not matter, and gloo supports fewer than torch.
        work = dist.broadcast(message.view(-1).view(torch.uint8), src=source, async_op=True)
        pending.append((work, tensor, message))
    for work, tensor, message in pending:
        work.wait()
        if message.data_ptr() != tensor.data_ptr():
            tensor.copy_(message)


def broadcast_module(module: nn.Module, except_for: Set[Tensor] = frozenset()) -> None:
    """Broadcast rank 0's parameters *and* buffers; tied tensors are sent once, `except_for` not at all.

    If a buffer (the running mean of a BatchNorm) were not broadcast, the replicas would evaluate differently with
    equal weights and no error.
    Raises ReplicasDiffer on every rank, before anything is sent, if the ranks did not build the same model.
    """
    _assert_same_model(module)
    tensors = [tensor for tensor in (*module.parameters(), *module.buffers()) if tensor not in except_for]
    broadcast_tensors(tensors, [0] * len(tensors))


def _assert_same_model(module: nn.Module) -> None:
    """Raise ReplicasDiffer unless all ranks have equal names, shapes and dtypes: a broadcast pairs tensors by order."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    descriptions = [f"{name} {tuple(t.shape)} {t.dtype}{'' if t.requires_grad else ' frozen'}" for name, t in tensors]
    descriptions_by_rank = gather_objects(descriptions)
    for rank, actual_model in enumerate(descriptions_by_rank):
        pairs = zip_longest(descriptions_by_rank[0], actual_model, fillvalue="none")
        for number, (expected, actual) in enumerate(pairs):
            if actual != expected:
                raise ReplicasDiffer(
                    f"The ranks built different models: tensor {number} is {expected} on rank 0, "
                    f"{actual} on rank {rank}."
                )
