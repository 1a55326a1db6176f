"""Rungs about experts on a mesh: sharded over ranks of shard and cp, as in parallel_ddp.py. Notebooks 26 and 30.

Stage and mesh are those of the trainer, with router biases that follow the load. In the reference, a MixtureGPT in one
process, every expert computes every token.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_course.distributed.expert_parallel import step_router_biases
from ddp_course.distributed.mesh import Axis, Mesh
from ddp_course.distributed.parameter_shards import average_expert_gradients, parameter_shards
from ddp_course.distributed.process_group import World
from ddp_course.ladder.axes import (
    SHARDED_SUMS,
    compare_sharded,
    divide_by_targets,
    inner_ranks,
    share_along,
    up_to_multiple,
    with_tokens,
)
from ddp_course.ladder.comparison import Comparison, Rung, Weights, mistake
from ddp_course.ladder.expert_rungs import EXPERTS, EXPERTS_PER_TOKEN, TOPIC, ReplicatedExperts
from ddp_course.ladder.setting import VOCABULARY, Batch, Setting
from ddp_course.models.minigpt import MiniGPTConfig
from ddp_course.trainers.minigpt_experts import MixtureGPT
from ddp_course.trainers.minigpt_stage import TIED, Stage

BIAS_RATE = 0.01  # the change of a router bias per step


class Reference(MixtureGPT):
    """MixtureGPT in which all experts compute all tokens. A step's load changes the biases before the next step."""

    def __init__(self, config: MiniGPTConfig, experts: int) -> None:
        super().__init__(config, experts, EXPERTS_PER_TOKEN)
        for mixture in self.mixtures:
            mixture.expert_outputs = partial(ReplicatedExperts.expert_outputs, mixture)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        if isinstance(self.mixtures[0].load, Tensor):  # not before the first step
            step_router_biases(self.mixtures, (), BIAS_RATE)
        return super().forward(tokens, targets)


def on_mesh(setting: Setting, world: World, sizes: Callable[[int], dict[str, int]]) -> Comparison:
    """Train a Stage on a mesh. sizes: maps the world size to the sizes of axes; axes that are left out have size 1."""
    mesh = Mesh(world, **dict.fromkeys(("pp", "dp", "shard", "cp", "tp"), 1) | sizes(world.size))
    count = up_to_multiple(EXPERTS, mesh.ep.size)
    config = MiniGPTConfig(VOCABULARY, setting.context, setting.layers, setting.heads, setting.width)
    torch.manual_seed(setting.seed)
    whole = MixtureGPT(config, count, EXPERTS_PER_TOKEN).double()
    torch.manual_seed(setting.seed)
    reference = Reference(config, count).double()
    stage = Stage(whole, mesh)
    shards = parameter_shards(stage, mesh, TIED)
    windows = Axis(mesh.replicas, mesh.replica, dist.group.WORLD)

    def gradients(batch: Batch) -> None:
        loss = divide_by_targets(
            setting, stage(*share_along(setting, world, batch, windows)), batch, mesh.gradient_ranks
        )
        (loss * mesh.gradient_ranks).backward()  # FSDP2 averages over these ranks
        if setting.fault != "experts_undivided":
            average_expert_gradients(shards, mesh)
        for shard in shards:
            if setting.fault == "experts_mixed" and mesh.ep in shard.placements and mesh.ep.size > 1:
                dist.all_reduce(shard.parameter.grad.to_local(), group=mesh.ep.group)
        step_router_biases(stage.mixtures, (mesh.dp, mesh.shard, mesh.cp), BIAS_RATE)

    def gathered_weights(_: Stage) -> Weights:
        return {shard.name: shard.gather(shard.parameter).clone() for shard in shards}

    return compare_sharded(setting, stage, gradients, gathered_weights, reference)


def fits(setting: Setting, ranks: int) -> Setting:
    """Make windows divide over all ranks, and heads and tokens as `with_tokens` does."""
    return replace(with_tokens(setting, ranks), windows=up_to_multiple(setting.windows, ranks))


def rung(name: str, sizes: Callable[[int], dict[str, int]]) -> Rung:
    return Rung(name, TOPIC, partial(on_mesh, sizes=sizes), SHARDED_SUMS, fits=fits)


SHARDED = rung("shard x ep", lambda ranks: {"shard": ranks, "ep": inner_ranks(ranks)})
RUNGS = [
    SHARDED,
    rung("cp x ep", lambda ranks: {"cp": ranks, "ep": inner_ranks(ranks)}),
    rung("shard x cp x ep", lambda n: {"shard": n // inner_ranks(n), "cp": inner_ranks(n), "ep": n}),
    rung("dp x shard x ep", lambda n: {"dp": n // inner_ranks(n), "shard": inner_ranks(n), "ep": inner_ranks(n)}),
    mistake("ep left to FSDP2", "experts_undivided", SHARDED),
    mistake(
        "experts mixed over ep",
        "experts_mixed",
        SHARDED,
        "adds gradients over ep's ranks, as if they had copies; they have different experts",
    ),
]
