"""MiniGPT with a mixture of experts in place of every block's MLP, the experts spread over ranks."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddp_course.distributed.expert_parallel import Mixture, balance_loss
from ddp_course.distributed.mesh import Axis
from ddp_course.models import minigpt
from ddp_course.models.minigpt import AttentionKind, Block, MiniGPT, MiniGPTConfig, parameter_count


class MixtureBlock(nn.Module):
    """A block of MiniGPT with a mixture of `experts` in place of the MLP, each expert of the MLP's size."""

    def __init__(self, block: Block, layers: int, experts: int, experts_per_token: int) -> None:
        super().__init__()
        self.dropout, self.mlp_norm = block.dropout, block.mlp_norm
        self.attention_norm, self.attention = block.attention_norm, block.attention
        self.mixture = Mixture(block.expand.in_features, block.expand.out_features, experts, experts_per_token)
        nn.init.normal_(self.mixture.experts.down, std=0.02 / (2 * layers) ** 0.5)  # as for MiniGPT's projections

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + F.dropout(self.mixture(self.mlp_norm(x)), self.dropout, self.training)


class MixtureGPT(MiniGPT):
    """MiniGPT with mixtures of experts. Call `shard_over` before forward, which is collective over the axis."""

    def __init__(
        self, config: MiniGPTConfig, experts: int, experts_per_token: int, attention: AttentionKind = "fused"
    ) -> None:
        super().__init__(config, attention)
        self.blocks = nn.ModuleList(
            MixtureBlock(block, config.layers, experts, experts_per_token) for block in self.blocks
        )

    @property
    def mixtures(self) -> list[Mixture]:
        return [block.mixture for block in self.blocks]

    def shard_over(self, axis: Axis) -> None:
        """Keep this rank's share of the experts of every block."""
        for mixture in self.mixtures:
            mixture.shard_over(axis)

    def choices(self) -> Tensor:
        """(layers, experts): how often each was chosen by this rank's tokens in the last forward pass."""
        return torch.stack([mixture.choices for mixture in self.mixtures])

    def balance(self, choices: Tensor, tokens: int) -> Tensor:
        """This rank's part of the balance loss of the last forward pass: see `expert_parallel.balance_loss`."""
        return balance_loss(self.mixtures, choices, tokens)


def make_model(config: MiniGPTConfig, experts: int | None, experts_per_token: int, attention: AttentionKind) -> MiniGPT:
    """A MixtureGPT, or a MiniGPT if there are no experts."""
    return MixtureGPT(config, experts, experts_per_token, attention) if experts else MiniGPT(config, attention)


def flops_per_token(config: MiniGPTConfig, experts: int | None, experts_per_token: int) -> int:
    """`minigpt.flops_per_token` for the model of `make_model`: a token passes the router and its experts."""
    added = (experts_per_token - 1) * 8 * config.width**2 + experts * config.width if experts else 0
    return minigpt.flops_per_token(config) + 6 * config.layers * added


def mixture_parameter_count(config: MiniGPTConfig, experts: int | None) -> tuple[int, int]:
    """The parameters of the model of `make_model`: (those of all experts, all others)."""
    if experts is None:
        return 0, parameter_count(config)
    mlp = 8 * config.width**2 + 5 * config.width  # of a block of MiniGPT, with its biases
    of_experts = config.layers * experts * 8 * config.width**2
    return of_experts, parameter_count(config) - config.layers * (mlp - experts * config.width)
