"""The models of the ladder: the course's MiniGPT, and others, to show that the results do not depend on the model.

Each maps tokens and targets, (windows, tokens), to the loss summed over the targets.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ddp_course.data.windows import IGNORED
from ddp_course.ladder.setting import VOCABULARY, Setting
from ddp_course.models.minigpt import MiniGPT, MiniGPTConfig


def build(setting: Setting, dtype: torch.dtype = torch.float64, norm: str = "", **changes) -> nn.Module:
    """Build the setting's model. The weights depend only on the seed: equal on every rank and in every call.

    norm: "batch" or "group" builds MLPs with this norm, whatever the setting's model is. changes: `dropout`,
    `activation_checkpointing`; for MiniGPT also `kv_heads`.
    """
    torch.manual_seed(setting.seed)
    if setting.model == "minigpt" and not norm:
        model_config = MiniGPTConfig(
            VOCABULARY, setting.context, setting.layers, setting.heads, setting.width, **changes
        )
        return MiniGPT(model_config).to(dtype)
    block = Recurrent if setting.model == "recurrent" and not norm else partial(MLP, norm=norm)
    return TokenModel(setting, block, **changes).to(dtype)


def build_part_frozen(setting: Setting) -> nn.Module:
    """Build the setting's model with a frozen first block, which gets no gradient."""
    model = build(setting)
    model.blocks[0].requires_grad_(False)
    return model


def build_minigpt(setting: Setting, **changes) -> MiniGPT:
    """Build MiniGPT, whatever `setting.model` is, for rungs that shard its attention or its layers."""
    return build(replace(setting, model="minigpt"), **changes)


class TokenModel(nn.Module):
    """Embedding, residual blocks, and an output layer tied to the embedding."""

    def __init__(
        self,
        setting: Setting,
        block: Callable[[int], nn.Module],
        *,
        dropout: float = 0.0,
        activation_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.dropout, self.activation_checkpointing = dropout, activation_checkpointing
        self.token_embedding = nn.Embedding(VOCABULARY, setting.width)
        self.blocks = nn.ModuleList(block(setting.width) for _ in range(setting.layers))
        self.output = nn.Linear(setting.width, VOCABULARY, bias=False)
        nn.init.normal_(self.output.weight, std=0.3)
        self.token_embedding.weight = self.output.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.token_embedding(tokens)
        for block in self.blocks:
            y = checkpoint(block, x, use_reentrant=False) if self.activation_checkpointing else block(x)
            x = x + F.dropout(y, self.dropout, self.training)
        logits = self.output(x).flatten(0, 1)
        return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="sum")


class MLP(nn.Module):
    """Two layers with BatchNorm, GroupNorm or no norm between them."""

    def __init__(self, width: int, norm: str = "") -> None:
        super().__init__()
        norms = {"batch": nn.BatchNorm1d, "group": lambda units: nn.GroupNorm(4, units)}
        self.norm = norms[norm](4 * width) if norm else nn.Identity()
        self.expand = nn.Linear(width, 4 * width)
        self.projection = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.expand(x).flatten(0, 1)).unflatten(0, x.shape[:2])
        return self.projection(torch.tanh(y))


class Recurrent(nn.Module):
    """A gated recurrent unit over the tokens of a window."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.unit = nn.GRU(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.unit(x)[0]


class Branches(nn.Module):
    """Three MLPs, of which a forward pass uses one: the others get no gradient."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, setting.width)
        self.branches = nn.ModuleList(MLP(setting.width) for _ in range(3))
        self.output = nn.Linear(setting.width, VOCABULARY)

    def forward(self, tokens: Tensor, targets: Tensor, branch: int) -> Tensor:
        logits = self.output(self.branches[branch](self.embedding(tokens)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
