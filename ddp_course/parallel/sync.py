"""Agreement between ranks: one decision for all, exact sums, and proof that replicas are equal."""

import hashlib
import itertools
import time
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_course.errors import InputError
from ddp_course.parallel.process_group import World

T = TypeVar("T")
_turns = itertools.count()  # of from_rank_0, which every rank calls equally often


class ReplicasDiffer(RuntimeError):
    """Ranks that should hold the same values do not."""


def from_rank_0(world: World, make: Callable[[], T]) -> T:
    """Run `make` on rank 0 and return its (picklable) result on every rank.

    Raises on *every* rank if `make` raised: nobody waits for a result that will never come. An InputError
    keeps its message everywhere; for another exception rank 0 keeps the original with its traceback.
    `make` may take longer than a collective may wait: until it is done, the others ask the store from time to time.
    """
    turn = f"from_rank_0/{next(_turns)}"
    failure: Exception | None = None
    message: tuple[object, str | None] = (None, None)
    if world.is_main:
        try:
            message = (make(), None)
        except Exception as error:
            failure, message = error, (None, str(error) or type(error).__name__)
        if world.store:
            world.store.set(turn, "done")
    elif world.store:
        pause = 0.001
        while not world.store.check([turn]):
            time.sleep(pause)
            pause = min(2 * pause, 0.2)
    box = [message]
    dist.broadcast_object_list(box, src=0, device=world.device)
    if failure is not None:
        raise failure
    result, error_text = box[0]
    if error_text is not None:
        raise InputError(error_text)
    return result


def sum_over_ranks(world: World, *values: float | Tensor) -> list[float]:
    """The sum of each value over all ranks, in float64 and in one all-reduce.

    For a mean, pass the sum and the count and divide: a mean of per-rank means is wrong as soon as one rank
    holds fewer items.
    """
    as_sum = {"dtype": torch.float64, "device": world.device}  # a Python float would become float32 otherwise
    totals = torch.stack([torch.as_tensor(value, **as_sum).detach() for value in values])
    dist.all_reduce(totals)
    return totals.tolist()


def assert_same_value(world: World, name: str, value: object) -> None:
    """Raise ReplicasDiffer on every rank unless all ranks hold the same (picklable) `value`."""
    values: list[object] = [None] * world.size
    dist.all_gather_object(values, value)
    for rank, other in enumerate(values):
        if other != values[0]:
            raise ReplicasDiffer(f"{name} differs: rank 0 has {values[0]!r}, rank {rank} has {other!r}")


def assert_replicas_equal(world: World, module: nn.Module, *, buffers: bool = False) -> None:
    """Raise ReplicasDiffer on every rank unless all ranks hold bit-equal parameters.

    The message names the first tensor and the first rank that differ, and by how much. `buffers=True` compares
    them as well; leave it off where they differ by design (the running statistics of BatchNorm).
    Only 8 bytes a tensor travel; the tensor itself only if it differs.
    """
    tensors = dict(module.named_parameters())
    if buffers:
        tensors |= dict(module.named_buffers())
    assert_same_value(world, "the list of tensors", [(name, tuple(t.shape)) for name, t in tensors.items()])
    mine = torch.tensor([_fingerprint(t) for t in tensors.values()], dtype=torch.int64, device=world.device)
    everyones = [torch.empty_like(mine) for _ in range(world.size)]
    dist.all_gather(everyones, mine)
    different = torch.stack([other != everyones[0] for other in everyones])  # (ranks, tensors)
    if not different.any():
        return
    index = int(different.any(dim=0).nonzero()[0])
    rank = int(different[:, index].nonzero()[0])
    name, tensor = list(tensors.items())[index]
    reference = tensor.detach().clone().contiguous()
    dist.broadcast(reference, src=0)
    gap = (tensor.detach() - reference).abs().max().to(torch.float64)
    gaps = [torch.empty_like(gap) for _ in range(world.size)]
    dist.all_gather(gaps, gap)
    raise ReplicasDiffer(
        f"replicas differ: {name} on rank {rank} is up to {gaps[rank].item():.3g} from rank 0's "
        f"({int(different.any(dim=0).sum())} of {len(tensors)} tensors differ)"
    )


def _fingerprint(tensor: Tensor) -> int:
    """64 bits of a hash over the tensor's bytes."""
    data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)
