"""Are the replicas still equal? Each rank's tensors become 16 bytes, which one all-gather compares.

    assert_replicas_equal(world, model, optimizer, step=step)  # on every rank, every N steps

The file needs nothing but torch, so you can copy it. `world` is any object with a `size` and a `device`.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer


class Ranks(Protocol):
    """The number of ranks, and the device of their collectives' tensors; a `World` is one."""

    size: int
    device: torch.device


class ReplicasDiffer(RuntimeError):
    """Ranks that should hold the same values do not."""


class RandomStatesEqual(RuntimeError):
    """Ranks that should draw random numbers of their own do not."""


def assert_replicas_equal(
    world: Ranks,
    module: nn.Module,
    optimizer: Optimizer | None = None,
    *,
    buffers: bool = False,
    own_random_state: bool = False,
    step: int | None = None,
) -> None:
    """Raise ReplicasDiffer on every rank unless all hold bit-equal parameters, and an equal state of `optimizer`.

    The message names the first tensor and the first rank that differs from most, and by how much. Of two ranks nobody
    can say which is right. `buffers=True` compares them as well; leave it off where they differ by design (the
    running statistics of BatchNorm). `own_random_state=True` also raises RandomStatesEqual if two ranks would draw the
    same dropout masks.
    """
    values = dict(_replicated(module, optimizer, buffers))
    prints = {name: (fingerprint(value), tuple(getattr(value, "shape", ()))) for name, value in values.items()}
    generator = torch if world.device.type == "cpu" else torch.get_device_module(world.device)
    own = torch.tensor([fingerprint(repr(prints)), fingerprint(generator.get_rng_state())], device=world.device)
    gathered = [torch.empty_like(own) for _ in range(world.size)]
    dist.all_gather(gathered, own)
    states, random_states = zip(*(of_rank.tolist() for of_rank in gathered), strict=True)
    when = "" if step is None else f" after step {step}"
    if len(set(states)) > 1:
        raise ReplicasDiffer(f"replicas differ{when}: {_first_difference(world, values, prints)}")
    for rank, state in enumerate(random_states if own_random_state else ()):
        if (first := random_states.index(state)) < rank:
            raise RandomStatesEqual(
                f"ranks {first} and {rank} draw the same random numbers{when}: seed each by its "
                "rank, or their dropout masks are equal"
            )


def _replicated(module: nn.Module, optimizer: Optimizer | None, buffers: bool) -> Iterator[tuple[str, Tensor | str]]:
    """Yield (kind and name, value) of all that has to be equal, in the same order on every rank."""
    names = {parameter: name for name, parameter in module.named_parameters()}
    yield from ((f"parameter {name}", parameter) for parameter, name in names.items())
    yield from ((f"buffer {name}", buffer) for name, buffer in module.named_buffers() if buffers)
    for number, group in enumerate(optimizer.param_groups if optimizer else ()):
        settings = {key: value for key, value in group.items() if key != "params"}
        for key, value in settings.items():
            yield f"setting {key} of the optimizer's group {number}", _exact(value)
        for index, parameter in enumerate(group["params"]):
            name = names.get(parameter, f"parameter {index} of group {number}")
            for key, value in sorted(optimizer.state.get(parameter, {}).items()):
                yield f"optimizer state {key} of {name}", _exact(value)


def _exact(value: object) -> Tensor | str:
    """A tensor itself, because its text is rounded; the text of any other value."""
    return value if isinstance(value, Tensor) else repr(value)


def _first_difference(world: Ranks, values: dict[str, Tensor | str], prints: dict[str, tuple]) -> str:
    """Name the first tensor and rank that differ, and the largest gap (collective). Sends that tensor."""
    gathered: list[dict] = [{} for _ in range(world.size)]
    dist.all_gather_object(gathered, prints)
    names = dict.fromkeys(name for rank_prints in gathered for name in rank_prints)
    columns = {name: [rank_prints.get(name) for rank_prints in gathered] for name in names}
    different = {name: column for name, column in columns.items() if len(set(column)) > 1}
    name, column = next(iter(different.items()))
    [(majority, _count)] = Counter(column).most_common(1)
    reference = column.index(majority)
    odd = next(rank for rank, fingerprint in enumerate(column) if fingerprint != majority)
    rest = f"rank {reference}'s ({len(different)} of {len(columns)} tensors differ)"
    tensor = values.get(name)
    if len({fingerprint and fingerprint[1] for fingerprint in column}) > 1 or not isinstance(tensor, Tensor):
        return f"{name} on rank {odd} is not {rest}"
    expected = tensor.detach().clone().contiguous()
    dist.broadcast(expected, src=reference)
    gap = (tensor.detach().double() - expected.double()).abs().max()
    dist.broadcast(gap, src=odd)
    return f"{name} on rank {odd} is up to {gap.item():.3g} from {rest}"


def fingerprint(value: Tensor | str) -> int:
    """A hash of 64 bits over a tensor's bytes, or a text's."""
    if isinstance(value, Tensor):
        data = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    else:
        data = value.encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)
