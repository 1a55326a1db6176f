"""The parameters of a model that is sharded over a mesh: each rank has a shard of some, and several ranks have copies.

This module gathers whole tensors, clips by the norm of the whole gradient, and checks that copies are equal.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from ddp_course.distributed.mesh import Mesh, all_reduce_flat
from ddp_course.distributed.process_group import World
from ddp_course.distributed.replica_check import ReplicasDiffer, fingerprint
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
    """This rank's shards of all parameters of its pipeline stage.

    tied: {name in the last stage: name in the first stage} of the parameters that both stages hold.
    """
    placements = placements_of(stage)
    shards = []
    for name, parameter in stage.named_parameters():
        is_in_two_stages = mesh.pp.size > 1 and (name in tied or name in tied.values())
        sharded_over = placements.get(name, {})
        copies = mesh.dp.size * (1 if mesh.tp in sharded_over else mesh.tp.size) * (2 if is_in_two_stages else 1)
        shards.append(ParameterShard(tied.get(name, name), parameter, mesh, sharded_over, copies))
    return shards


def average_expert_gradients(shards: list[ParameterShard], mesh: Mesh) -> None:
    """Divide the gradients of experts by ep, in place, to make them means over all data ranks.

    An expert computes the tokens of all ep ranks, so its gradient is already their sum. fully_shard has averaged it
    over the other data ranks.
    """
    for shard in shards:
        if mesh.ep in shard.placements:
            _local(shard.parameter.grad).div_(mesh.ep.size)


def add_tensor_gradients(shards: list[ParameterShard], mesh: Mesh) -> None:
    """Sum the gradients of replicated parameters (norms, biases) over tp, in place: each rank's are of its own tokens.

    A router's gradient is complete on each of these ranks, because every one has computed it from all tokens.
    """
    if mesh.tp.size > 1:
        replicated = [shard for shard in shards if mesh.tp not in shard.placements and ".router." not in shard.name]
        all_reduce_flat([_local(shard.parameter.grad) for shard in replicated], mesh.tp.group)


@torch.no_grad()
def clip_gradients(shards: list[ParameterShard], limit: float) -> float:
    """Scale the gradient of the whole model to a norm of at most `limit`; returns its norm before (collective).

    Each rank divides its sums of squares by the number of copies, so one sum over all ranks counts each element once.
    """
    gradients = [_local(shard.parameter.grad) for shard in shards]
    squares = [g.double().square().sum() / shard.copies for shard, g in zip(shards, gradients, strict=True)]
    total = torch.stack(squares).sum()
    dist.all_reduce(total)
    norm = math.sqrt(total.item())
    factor = norm if math.isnan(norm) else min(1.0, limit / (norm + 1e-6))
    for gradient in gradients:
        gradient *= factor
    return norm


def assert_copies_equal(
    world: World,
    shards: list[ParameterShard],
    step: int | None = None,
    buffers: Mapping[str, Tensor] = MappingProxyType({}),
) -> None:
    """Raise ReplicasDiffer on every rank unless all copies of a shard or of a buffer are bit-equal (collective).

    step: the number of the last step, for the message.
    """
    fingerprints = {(shard.name, shard.coordinates): fingerprint(_local(shard.parameter)) for shard in shards}
    fingerprints |= {(name, "whole"): fingerprint(buffer) for name, buffer in buffers.items()}
    fingerprints_by_rank: list[dict] = [{} for _ in range(world.size)]
    dist.all_gather_object(fingerprints_by_rank, fingerprints)
    first_holder: dict[tuple, int] = {}  # the lowest rank with a copy
    for rank, rank_fingerprints in enumerate(fingerprints_by_rank):
        for key, value in rank_fingerprints.items():
            holder = first_holder.setdefault(key, rank)
            if fingerprints_by_rank[holder][key] != value:
                when = "" if step is None else f" after step {step}"
                name, coordinates = key
                raise ReplicasDiffer(
                    f"copies differ{when}: {name} ({coordinates}) on rank {rank} is not rank {holder}'s"
                )


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
