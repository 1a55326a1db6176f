"""Make every rank's model rank 0's: parameters and buffers, of any type, wherever they come from."""

from collections.abc import Collection, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_course.distributed.replica_check import ReplicasDiffer


@torch.no_grad()
def broadcast_tensors(tensors: Iterable[Tensor], sources: Iterable[int]) -> None:
    """Overwrite each tensor by that of its source rank. All messages are under way before the first is awaited."""
    in_flight = []
    for tensor, source in zip(tensors, sources, strict=True):
        dense = tensor.detach().contiguous()  # the tensor itself, unless its elements lie apart in memory
        # As bytes: a broadcast computes nothing, so the type does not matter, and gloo knows fewer types than torch.
        work = dist.broadcast(dense.view(-1).view(torch.uint8), src=source, async_op=True)
        in_flight.append((work, tensor, dense))
    for work, tensor, dense in in_flight:
        work.wait()
        if dense.data_ptr() != tensor.data_ptr():
            tensor.copy_(dense)


def broadcast_module(module: nn.Module, except_for: Collection[Tensor] = ()) -> None:
    """Give every rank rank 0's parameters *and* buffers; tied tensors travel once. `except_for` stay as they are.

    A buffer that is not broadcast (the running mean of a BatchNorm) leaves replicas different from the first
    evaluation on, with equal weights and no error.
    Raises ReplicasDiffer on every rank, before anything is sent, if the ranks did not build the same model.
    """
    _assert_same_model(module)
    kept = set(except_for)
    tensors = [tensor for tensor in (*module.parameters(), *module.buffers()) if tensor not in kept]
    broadcast_tensors(tensors, [0] * len(tensors))


def _assert_same_model(module: nn.Module) -> None:
    """Messages have no names: with different models, tensors of different meaning would be paired in silence."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    mine = [f"{name} {tuple(t.shape)} {t.dtype}{'' if t.requires_grad else ' frozen'}" for name, t in tensors]
    everyones: list[list[str]] = [[]] * dist.get_world_size()
    dist.all_gather_object(everyones, mine)
    for rank, theirs in enumerate(everyones):
        for number in range(max(len(theirs), len(everyones[0]))):
            there, here = (", ".join(tensors[number : number + 1]) or "none" for tensors in (theirs, everyones[0]))
            if there != here:
                raise ReplicasDiffer(
                    f"The ranks built different models: tensor {number} is {here} on rank 0, {there} on rank {rank}."
                )
