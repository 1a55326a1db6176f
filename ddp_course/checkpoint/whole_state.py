"""The state of a model that is spread over a mesh, as one process would hold it.

So a checkpoint of any mesh can be read by any other one, and by a trainer of one process: rank 0 collects whole tensors
to save, and every rank takes its pieces of whole tensors to go on. Rank 0 needs memory for all of them.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_course.base.errors import InputError
from ddp_course.distributed.mesh import Mesh
from ddp_course.distributed.pieces import Piece

AVERAGES = "exp_avg", "exp_avg_sq"  # AdamW's, laid out as the parameter


class WholeModel:
    """The weights under the names of the whole model. `aliases`: further names of the same tensors."""

    def __init__(self, mesh: Mesh, pieces: list[Piece], names: list[list[str]], aliases: dict[str, str]) -> None:
        self._mesh, self._pieces, self._aliases = mesh, pieces, aliases
        self._names = {name for group in names for name in group} | aliases.keys()

    def state_dict(self) -> dict[str, Tensor]:
        """On rank 0 all weights, on the others none (collective). Raises InputError if one of them is not finite."""
        weights = collect(self._mesh, {piece.name: piece.whole(piece.parameter) for piece in self._pieces})
        broken = [name for name, weight in weights.items() if not weight.isfinite().all()]
        found = [broken[:1]]
        dist.broadcast_object_list(found, src=0)
        if found[0]:
            raise InputError(
                f"the run has diverged: weights are not finite ({found[0][0]}), so no checkpoint of them "
                "is written; go on from the newest one with a lower --learning-rate"
            )
        return weights | {alias: weights[name] for alias, name in self._aliases.items() if weights}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if odd := state.keys() ^ self._names:
            raise KeyError(f"{min(odd)} is on one side only")
        for piece in self._pieces:
            piece.parameter.copy_(piece.of_whole(state[piece.name]))


class WholeOptimizer:
    """AdamW's state as that of an optimizer of the whole model, whose groups have the parameters `names`."""

    def __init__(self, mesh: Mesh, pieces: list[Piece], names: list[list[str]], optimizer: torch.optim.AdamW) -> None:
        self._mesh, self._pieces, self._groups, self._optimizer = mesh, pieces, names, optimizer

    def state_dict(self) -> dict:
        """On rank 0 all of it, on the others nothing (collective)."""
        mine = {}
        for piece in self._pieces:
            state = self._optimizer.state[piece.parameter]
            mine[piece.name] = {name: piece.whole(state[name]) for name in AVERAGES} | {"step": state["step"]}
        collected = collect(self._mesh, mine)
        if not collected:
            return {}
        numbers, groups = {}, []
        for names, own in zip(self._groups, self._optimizer.param_groups, strict=True):
            in_group = {name: len(numbers) + place for place, name in enumerate(names)}
            groups.append({k: v for k, v in own.items() if k != "params"} | {"params": list(in_group.values())})
            numbers |= in_group
        return {"state": {number: collected[name] for name, number in numbers.items()}, "param_groups": groups}

    def load_state_dict(self, state: dict) -> None:
        """Its settings stay those of today, as `training_state.keep_settings` has it."""
        names = [name for group in self._groups for name in group]
        whole = {name: state["state"][number] for number, name in enumerate(names)}
        for piece in self._pieces:
            averages = {name: piece.of_whole(whole[piece.name][name]) for name in AVERAGES}
            self._optimizer.state[piece.parameter] = {"step": whole[piece.name]["step"].clone()} | averages


def names_by_group(whole: nn.Module) -> list[list[str]]:
    """The parameters of a model as `optimization.make_adamw` groups and orders them."""
    of_dimension = [(name, parameter.dim() >= 2) for name, parameter in whole.named_parameters()]
    return [[name for name, is_matrix in of_dimension if is_matrix == wanted] for wanted in (True, False)]


def collect(mesh: Mesh, mine: dict) -> dict:
    """What the stages hold, on rank 0; nothing on the others (collective)."""
    speaks = mesh.world.rank % (mesh.world.size // mesh.pp.size) == 0  # at 0 on all axes but pp
    everyones: list[dict] | None = [{} for _ in range(mesh.pp.size)] if mesh.world.is_main else None
    if speaks:
        dist.gather_object(mine, everyones, group=mesh.pp.group, group_dst=0)
    return {name: value for one in everyones or () for name, value in one.items()}
