"""The unsharded state of a model that is sharded over a mesh.

A checkpoint of any mesh can be loaded on any other mesh, and by a trainer of one process: rank 0 gathers whole tensors
to save, and every rank takes its shards of whole tensors to load. Rank 0 needs memory for all of them.
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_course.distributed.mesh import Mesh
from ddp_course.distributed.parameter_shards import ParameterShard

AVERAGES = "exp_avg", "exp_avg_sq"  # AdamW's, laid out as the parameter


class WholeModel:
    """The weights in the format of the whole model's state_dict.

    names: of the parameters in each group of the optimizer. aliases: {further name: name} of tied tensors.
    """

    def __init__(
        self, mesh: Mesh, shards: list[ParameterShard], names: list[list[str]], aliases: dict[str, str]
    ) -> None:
        self._mesh, self._shards, self._aliases = mesh, shards, aliases
        self._names = {name for group in names for name in group} | aliases.keys()

    def state_dict(self) -> dict[str, Tensor]:
        """All weights on rank 0, an empty dict on the others (collective)."""
        weights = collect(self._mesh, {shard.name: shard.gather(shard.parameter).cpu() for shard in self._shards})
        return weights | {alias: weights[name] for alias, name in self._aliases.items() if weights}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if unmatched := state.keys() ^ self._names:
            raise KeyError(f"{min(unmatched)} is on one side only")
        for shard in self._shards:
            shard.parameter.copy_(shard.own_slice(state[shard.name]))


class WholeOptimizer:
    """AdamW's state in the format of an optimizer of the whole model. names: of each group's parameters, in order."""

    def __init__(
        self, mesh: Mesh, shards: list[ParameterShard], names: list[list[str]], optimizer: torch.optim.AdamW
    ) -> None:
        self._mesh, self._shards, self._groups, self._optimizer = mesh, shards, names, optimizer

    def state_dict(self) -> dict:
        """The whole state on rank 0, an empty dict on the others (collective)."""
        gathered = {}
        for shard in self._shards:
            state = self._optimizer.state[shard.parameter]
            gathered[shard.name] = {name: shard.gather(state[name]).cpu() for name in AVERAGES}
            gathered[shard.name]["step"] = state["step"].cpu()
        collected = collect(self._mesh, gathered)
        if not collected:
            return {}
        numbers, groups = {}, []  # torch numbers the parameters, counting on from group to group
        for names, group in zip(self._groups, self._optimizer.param_groups, strict=True):
            group_numbers = {name: len(numbers) + index for index, name in enumerate(names)}
            groups.append({k: v for k, v in group.items() if k != "params"} | {"params": list(group_numbers.values())})
            numbers |= group_numbers
        return {"state": {number: collected[name] for name, number in numbers.items()}, "param_groups": groups}

    def load_state_dict(self, state: dict) -> None:
        """Load the state, but not the settings of the groups (see `training_state.keep_settings`)."""
        names = [name for group in self._groups for name in group]
        whole = {name: state["state"][number] for number, name in enumerate(names)}
        for shard in self._shards:
            averages = {name: shard.own_slice(whole[shard.name][name]) for name in AVERAGES}
            step = whole[shard.name]["step"].to(shard.parameter.device, copy=True)  # where a fused AdamW needs it
            self._optimizer.state[shard.parameter] = {"step": step} | averages


class WholeBuffers:
    """Buffers that are not sharded within a pipeline stage: every rank of the stage has all of its buffers."""

    def __init__(self, mesh: Mesh, buffers: dict[str, Tensor]) -> None:
        self._mesh, self._buffers = mesh, buffers

    def state_dict(self) -> dict[str, Tensor]:
        """The buffers of all stages on rank 0, an empty dict on the others (collective)."""
        return collect(self._mesh, {name: buffer.cpu() for name, buffer in self._buffers.items()})

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for name, buffer in self._buffers.items():
            buffer.copy_(state[name])


def names_by_group(model: nn.Module) -> list[list[str]]:
    """The names of a model's parameters, as `optimization.make_adamw` groups and orders them."""
    matrices = [name for name, parameter in model.named_parameters() if parameter.dim() >= 2]
    vectors = [name for name, parameter in model.named_parameters() if parameter.dim() < 2]
    return [matrices, vectors]


def collect(mesh: Mesh, entries: dict) -> dict:
    """The entries of all pipeline stages in one dict on rank 0, an empty dict on the others (collective).

    Their tensors must be on the CPU: a pickled tensor of a GPU would take memory on that GPU again, in rank 0.
    """
    is_first_of_stage = mesh.world.rank % (mesh.world.size // mesh.pp.size) == 0  # at 0 on all axes but pp
    entries_by_stage: list[dict] | None = [{} for _ in range(mesh.pp.size)] if mesh.world.is_main else None
    if is_first_of_stage:
        dist.gather_object(entries, entries_by_stage, group=mesh.pp.group, group_dst=0)
    return {name: value for stage_entries in entries_by_stage or () for name, value in stage_entries.items()}
