"""The parameters of a model that is spread over a mesh: each rank has a piece of some of them, and several have copies.

From that follow a norm that counts every number once, the whole tensor again, and the check that copies are equal.
"""

import hashlib
import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from ddp_course.distributed.mesh import Mesh
from ddp_course.distributed.replica_check import ReplicasDiffer
from ddp_course.distributed.tensor_parallel import Cut, cuts_of


@dataclass(frozen=True)
class Piece:
    """This rank's part of one tensor of the whole model. `copies`: how many ranks hold the same part."""

    name: str
    parameter: nn.Parameter
    mesh: Mesh
    cut: Cut | None
    copies: int

    @property
    def place(self) -> str:
        """Which part of the tensor it is: ranks with the same name and place hold copies."""
        tp = self.mesh.tp.rank if self.cut else 0
        return f"tp {tp} shard {self.mesh.shard.rank} cp {self.mesh.cp.rank}"

    @property
    def own(self) -> Tensor:
        """What this rank holds of the parameter, as a plain tensor."""
        return _local(self.parameter)

    def whole(self, value: Tensor) -> Tensor:
        """The whole tensor of which every rank has a part laid out as this one (collective)."""
        value = value.detach()
        if isinstance(value, DTensor):
            value = value.full_tensor()
        if self.cut:
            parts = [torch.empty_like(value) for _ in range(self.mesh.tp.size)]
            dist.all_gather(parts, value.contiguous(), group=self.mesh.tp.group)
            value = self.cut.joined(parts)
        return value

    def of_whole(self, whole: Tensor) -> Tensor:
        """This rank's part, in the form of the parameter. Nothing is sent: every rank has the whole one."""
        part = self.cut.part(whole, self.mesh.tp.rank, self.mesh.tp.size) if self.cut else whole
        part = part.to(self.parameter.device, self.parameter.dtype).clone()
        if isinstance(self.parameter, DTensor):
            return distribute_tensor(part, self.parameter.device_mesh, self.parameter.placements, src_data_rank=None)
        return part


def pieces_of(stage: nn.Module, mesh: Mesh, tied: dict[str, str]) -> list[Piece]:
    """Of all parameters of this rank's stage. tied: name -> the name it goes by where first and last stage share it."""
    cuts = cuts_of(stage)
    pieces = []
    for name, parameter in stage.named_parameters():
        shared = mesh.pp.size > 1 and (name in tied or name in tied.values())
        copies = mesh.dp.size * (1 if name in cuts else mesh.tp.size) * (2 if shared else 1)
        pieces.append(Piece(tied.get(name, name), parameter, mesh, cuts.get(name), copies))
    return pieces


@torch.no_grad()
def clip_gradients(pieces: list[Piece], limit: float) -> float:
    """Scale the gradient of the whole model down to a norm of `limit`, as torch's clip_grad_norm_; returns its norm.

    A number that several ranks hold is counted by each as its share, so one sum over all ranks counts it once.
    """
    gradients = [_local(piece.parameter.grad) for piece in pieces]
    squares = [g.double().square().sum() / piece.copies for piece, g in zip(pieces, gradients, strict=True)]
    total = torch.stack(squares).sum().reshape(1)
    dist.all_reduce(total)
    norm = math.sqrt(total.item()) if total.item() >= 0 else math.nan  # of NaN: NaN
    factor = min(1.0, limit / (norm + 1e-6)) if norm == norm else norm
    for gradient in gradients:
        gradient *= factor
    return norm


def assert_copies_equal(world, pieces: list[Piece], step: int | None = None) -> None:
    """Raise ReplicasDiffer on every rank unless all ranks that hold the same part hold the same bits (collective)."""
    mine = {(piece.name, piece.place): _fingerprint(piece.parameter) for piece in pieces}
    everyones: list[dict] = [{} for _ in range(world.size)]
    dist.all_gather_object(everyones, mine)
    first: dict[tuple, int] = {}  # who showed a part first
    for rank, one in enumerate(everyones):
        for part, found in one.items():
            holder = first.setdefault(part, rank)
            if everyones[holder][part] != found:
                when = "" if step is None else f" after step {step}"
                name, place = part
                raise ReplicasDiffer(f"copies differ{when}: {name} ({place}) on rank {rank} is not rank {holder}'s")


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _fingerprint(tensor: Tensor) -> bytes:
    data = _local(tensor).detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return hashlib.blake2b(data, digest_size=8).digest()
