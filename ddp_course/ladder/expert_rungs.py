"""Rungs about expert parallelism: each rank has some of the experts, and tokens are sent to them. Notebook 30.

The mixture is that of `distributed.expert_parallel`. In the reference every expert computes every token.
"""

from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ddp_course.distributed.expert_parallel import Mixture, balance_loss
from ddp_course.distributed.mesh import Axis
from ddp_course.distributed.process_group import World
from ddp_course.distributed.tensor_parallel import placements_of
from ddp_course.ladder.axes import (
    SHARDED_SUMS,
    all_ranks,
    all_reduce_gradients,
    axis_of,
    compare_sharded,
    divide_by_targets,
    mesh_of_replicas,
    share_along,
    up_to_multiple,
)
from ddp_course.ladder.comparison import Comparison, Rung, mistake
from ddp_course.ladder.setting import VOCABULARY, Batch, Setting
from ddp_course.ladder.sharded_layers import gathered_weights

EXPERTS = 4  # rounded up if it does not divide over the ranks
EXPERTS_PER_TOKEN = 2
BALANCE = 0.1  # weight of the balance loss


class ReplicatedExperts(Mixture):
    """A mixture in one process: all experts compute all tokens, and only the chosen outputs are used."""

    def expert_outputs(self, tokens: Tensor, chosen: Tensor) -> Tensor:
        outputs = torch.stack(
            [F.gelu(tokens @ up) @ down for up, down in zip(self.experts.up, self.experts.down, strict=True)], 1
        )
        return outputs[torch.arange(len(tokens))[:, None], chosen]


class ExpertModel(nn.Module):
    """Embedding, residual mixtures of experts, and an output layer tied to the embedding."""

    def __init__(self, setting: Setting, experts: int, balance: float, axis: Axis | None = None) -> None:
        super().__init__()
        torch.manual_seed(setting.seed)
        mixture_class = Mixture if axis else ReplicatedExperts
        width = setting.width
        self.table = nn.Parameter(0.3 * torch.randn(VOCABULARY, width))
        self.mixtures = nn.ModuleList(
            mixture_class(width, 2 * width, experts, EXPERTS_PER_TOKEN, width**-0.5) for _ in range(setting.layers)
        )
        self.double()
        for mixture in self.mixtures if axis else ():
            mixture.shard_over(axis)
        self.balance_weight, self.global_tokens = balance, setting.tokens
        self.sharded = axis is not None
        self.per_rank = self.sharded and setting.fault == "balance_per_rank"

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The summed loss, plus the weighted balance loss times the tokens of the global batch."""
        x = F.embedding(tokens.flatten(), self.table)
        for mixture in self.mixtures:
            x = x + mixture(x)
        loss = F.cross_entropy(x @ self.table.T, targets.flatten(), reduction="sum")
        if self.balance_weight:
            loss = loss + self.balance_weight * self.global_tokens * self.balance(tokens.numel())
        return loss

    def balance(self, own_tokens: int) -> Tensor:
        """This rank's part of the balance loss, computed from the choices of all ranks (collective if sharded)."""
        choices = torch.stack([mixture.choices for mixture in self.mixtures])
        if self.per_rank:
            return balance_loss(self.mixtures, choices, own_tokens) / dist.get_world_size()
        if self.sharded:
            dist.all_reduce(choices)
        return balance_loss(self.mixtures, choices, self.global_tokens)


def experts(setting: Setting, world: World, balance: float = 0.0, replicas: bool = False) -> Comparison:
    """Shard windows over all ranks, and experts over all ranks too or, with `replicas`, over a mesh's inner axis."""
    world_axis = all_ranks(world)
    axis, data = world_axis, Axis(1, 0, world_axis.group)
    if replicas:
        mesh = mesh_of_replicas("experts", world)
        axis, data = axis_of(mesh, "experts"), axis_of(mesh, "data")
    count = up_to_multiple(EXPERTS, axis.size)
    model, reference = ExpertModel(setting, count, balance, axis), ExpertModel(setting, count, balance)
    placements = placements_of(model)
    expert_parameters = [parameter for name, parameter in model.named_parameters() if name in placements]
    replicated = [parameter for name, parameter in model.named_parameters() if name not in placements]

    def gradients(batch: Batch) -> None:
        loss = model(*share_along(setting, world, batch, world_axis))
        divide_by_targets(setting, loss, batch, world_axis.size).backward()
        all_reduce_gradients(setting, replicated, world_axis)
        if setting.fault == "experts_mixed":
            all_reduce_gradients(setting, expert_parameters, world_axis)
        elif data.size > 1 and setting.fault != "experts_apart":
            # Not over `axis`: an expert has computed the tokens of all its ranks already.
            all_reduce_gradients(setting, expert_parameters, data)
        if setting.fault == "experts_divided":
            for parameter in expert_parameters:
                parameter.grad /= axis.size

    return compare_sharded(setting, model, gradients, gathered_weights, reference)


TOPIC = "experts"
ALL_TO_ALL = Rung("experts: all-to-all", TOPIC, experts, SHARDED_SUMS)
BALANCED = Rung("experts: balance loss", TOPIC, partial(experts, balance=BALANCE), SHARDED_SUMS)
REPLICATED = Rung("data x experts", TOPIC, partial(experts, balance=BALANCE, replicas=True), SHARDED_SUMS)
RUNGS = [
    ALL_TO_ALL,
    BALANCED,
    REPLICATED,
    mistake("experts divided by N", "experts_divided", ALL_TO_ALL),
    mistake("balance loss per rank", "balance_per_rank", BALANCED),
    mistake("experts added over all ranks", "experts_mixed", REPLICATED),
    mistake("replicas of experts apart", "experts_apart", REPLICATED, differs_from=4),
]
