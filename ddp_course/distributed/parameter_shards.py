"""The parameters of a model that is sharded over a mesh: each rank has a shard of some, and several ranks have copies.

This module gathers whole tensors, clips by the norm of the whole gradient, and checks that copies are equal.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from ddp_course.distributed.mesh import Mesh
from ddp_course.distributed.replica_check import ReplicasDiffer
from ddp_course.distributed.tensor_parallel import Placements, all_gather, own_part, placements_of


@dataclass(frozen=True)
class ParameterShard:
    """This rank's shard of a parameter of the whole model. `copies`: the number of ranks with the same shard."""

    name: str
    parameter: nn.Parameter
    mesh: Mesh
    placements: Placements  # over tp and ep, apart from the sharding by FSDP2
    copies: int

    @property
    def coordinates(self) -> str:
        """The position of the shard in the tensor: ranks with the same name and coordinates hold copies."""
        tp = self.mesh.tp.rank if self.mesh.tp in self.placements else 0
        return f"tp {tp} shard {self.mesh.shard.rank} cp {self.mesh.cp.rank}"

    @property
    def local(self) -> Tensor:
        """The shard as a plain tensor."""
        return _local(self.parameter)

    def gather(self, value: Tensor) -> Tensor:
        """Gather the whole tensor from `value`, which is sharded like this parameter, on all ranks (collective)."""
        value = value.detach()
        if isinstance(value, DTensor):
            value = value.full_tensor()
        return all_gather(self.placements, value)

    def own_slice(self, whole: Tensor) -> Tensor:
        """This rank's shard of a whole tensor that every rank has, in the parameter's layout. Sends nothing."""
        part = own_part(self.placements, whole).to(self.parameter.device, self.parameter.dtype).clone()
        if isinstance(self.parameter, DTensor):
            return distribute_tensor(part, self.parameter.device_mesh, self.parameter.placements, src_data_rank=None)
        return part


def parameter_shards(stage: nn.Module, mesh: Mesh, tied: dict[str, str]) -> list[ParameterShard]:
    """The shards of all parameters of this rank's stage.

    tied: {name in the last stage: name in the first stage} of parameters that both hold.
    """
    placements = placements_of(stage)
    shards = []
    for name, parameter in stage.named_parameters():
        shared = mesh.pp.size > 1 and (name in tied or name in tied.values())
        own = placements.get(name, {})
        copies = mesh.dp.size * (1 if mesh.tp in own else mesh.tp.size) * (2 if shared else 1)
        shards.append(ParameterShard(tied.get(name, name), parameter, mesh, own, copies))
    return shards


def average_expert_gradients(shards: list[ParameterShard], mesh: Mesh) -> None:
    """Divide by ep what fully_shard has averaged over the other data ranks: an expert has the sum of ep's gradients.

    Tokens came from all of ep's ranks, and their gradients with them, so there is nothing left to send.
    """
    for shard in shards:
        if mesh.ep in shard.placements:
            _local(shard.parameter.grad).div_(mesh.ep.size)


def add_tensor_gradients(shards: list[ParameterShard], mesh: Mesh) -> None:
    """Add the gradients of what all ranks of tp hold: norms and biases have seen the own tokens only.

    A router has seen all of them, on each of these ranks.
    """
    whole = [shard for shard in shards if mesh.tp not in shard.placements and ".router." not in shard.name]
    gradients = [_local(shard.parameter.grad) for shard in whole] if mesh.tp.size > 1 else []
    if gradients:
        total = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(total, group=mesh.tp.group)
        for gradient, part in zip(gradients, total.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))


@torch.no_grad()
def clip_gradients(shards: list[ParameterShard], limit: float) -> float:
    """Scale the gradient of the whole model down to a norm of `limit`, as torch's clip_grad_norm_; returns its norm.

    Each rank divides the square of a number by its copies, so one sum over all ranks counts every number once.
    """
    gradients = [_local(shard.parameter.grad) for shard in shards]
    squares = [g.double().square().sum() / shard.copies for shard, g in zip(shards, gradients, strict=True)]
    total = torch.stack(squares).sum().reshape(1)
    dist.all_reduce(total)
    norm = math.sqrt(total.item()) if total.item() >= 0 else math.nan  # of NaN: NaN
    factor = min(1.0, limit / (norm + 1e-6)) if norm == norm else norm
    for gradient in gradients:
        gradient *= factor
    return norm


def assert_copies_equal(
    world, shards: list[ParameterShard], step: int | None = None, buffers: Mapping[str, Tensor] = MappingProxyType({})
) -> None:
    """Raise ReplicasDiffer on every rank unless all copies of a shard or of a buffer are bit-equal (collective)."""
    fingerprints = {(shard.name, shard.coordinates): _fingerprint(shard.parameter) for shard in shards}
    fingerprints |= {(name, "whole"): _fingerprint(buffer) for name, buffer in buffers.items()}
    fingerprints_by_rank: list[dict] = [{} for _ in range(world.size)]
    dist.all_gather_object(fingerprints_by_rank, fingerprints)
    first_holder: dict[tuple, int] = {}  # the lowest rank with a copy
    for rank, rank_fingerprints in enumerate(fingerprints_by_rank):
        for key, fingerprint in rank_fingerprints.items():
            holder = first_holder.setdefault(key, rank)
            if fingerprints_by_rank[holder][key] != fingerprint:
                when = "" if step is None else f" after step {step}"
                name, coordinates = key
                raise ReplicasDiffer(
                    f"copies differ{when}: {name} ({coordinates}) on rank {rank} is not rank {holder}'s"
                )


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _fingerprint(tensor: Tensor) -> bytes:
    data = _local(tensor).detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return hashlib.blake2b(data, digest_size=8).digest()
