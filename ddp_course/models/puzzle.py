"""A small recurrent model for puzzles: a fast level that works out details, a slow one that keeps the plan.

In the spirit of Wang et al., "Hierarchical Reasoning Model" (2025). Both levels are transformer blocks that are applied
again and again to their own state. Left out: the choice of when to stop thinking, which needs reinforcement learning.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class PuzzleModelConfig:
    """The sizes of the model and its numbers of steps. `size`: the number of digits, and of cells in a row.

    gradient: "one-step" sends gradients through the last step of each level only, which costs memory for one step
    whatever the number of steps; "full" through all steps of a segment.
    """

    size: int = 4
    width: int = 64
    heads: int = 4
    layers: int = 1  # blocks per level
    puzzle_width: int = 16  # of the vector that stands for a puzzle
    slow_steps: int = 2  # per segment
    fast_steps: int = 2  # per slow step
    segments: int = 2  # each ends with an answer and its loss, and hands its states to the next
    gradient: Literal["one-step", "full"] = "one-step"

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} does not divide into {self.heads} heads of equal size")


class Block(nn.Module):
    """Attention over all cells, then an MLP. Each is followed by a norm, so that a state cannot grow over steps.

    The norm is RMSNorm without weights (Zhang and Sennrich, 2019).
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.mixed = nn.Linear(width, width, bias=False)
        self.expand = nn.Linear(width, 4 * width, bias=False)
        self.projection = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, 3, self.heads, width // self.heads)
        query, key, value = self.query_key_value(x).view(shape).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(query, key, value)
        x = F.rms_norm(x + self.mixed(y.transpose(1, 2).reshape(batch, length, width)), (width,))
        return F.rms_norm(x + self.projection(F.gelu(self.expand(x))), (width,))


class Level(nn.Module):
    """One level of the recurrence: new state = blocks(state + context)."""

    def __init__(self, config: PuzzleModelConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(config.width, config.heads) for _ in range(config.layers))

    def forward(self, state: Tensor, context: Tensor) -> Tensor:
        x = state + context
        for block in self.blocks:
            x = block(x)
        return x


class PuzzleModel(nn.Module):
    """`model(clues, vectors)` gives logits; `model(clues, vectors, targets)` the *summed* loss over the targets.

    A sum, as in MiniGPT, because the sums of the ranks add up to the sum of the global batch. With several segments
    it is the mean of their sums. `vectors` (batch, puzzle_width) come from an embedding outside of this module, which
    DDP must not wrap. Attention reads a puzzle's vector as one more position, in front of the cells.
    """

    def __init__(self, config: PuzzleModelConfig) -> None:
        super().__init__()
        self.config = config
        box = math.isqrt(config.size)
        cell = torch.arange(config.size**2)
        row, column = cell // config.size, cell % config.size
        places = torch.stack([row, column, row // box * box + column // box])  # (3, cells)
        self.register_buffer("places", places, persistent=False)
        self.digit = nn.Embedding(config.size + 1, config.width)
        self.place = nn.ModuleList(nn.Embedding(config.size, config.width) for _ in places)
        self.puzzle = nn.Linear(config.puzzle_width, config.width, bias=False)
        self.fast, self.slow = Level(config), Level(config)
        self.output = nn.Linear(config.width, config.size)

    def forward(
        self, clues: Tensor, vectors: Tensor, targets: Tensor | None = None, segments: int | None = None
    ) -> Tensor:
        """clues, targets: (batch, cells) of int64; vectors: (batch, puzzle_width).

        Returns logits (batch, cells, size) after the last segment, or a scalar loss sum. `segments` replaces the
        number of segments in the config.
        """
        answers = self.answers(clues, vectors, segments)
        if targets is None:
            return answers[-1]
        # Targets of -100, the default ignore_index, add nothing.
        losses = [F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") for logits in answers]
        return torch.stack(losses).mean()

    def answers(self, clues: Tensor, vectors: Tensor, segments: int | None = None) -> list[Tensor]:
        """The logits (batch, cells, size) after each segment, in float32 or wider even under autocast."""
        cells = self.digit(clues) + sum(table(place) for table, place in zip(self.place, self.places, strict=True))
        context = torch.cat([self.puzzle(vectors)[:, None], cells], dim=1)
        slow, fast, answers = torch.zeros_like(context), torch.zeros_like(context), []
        for _ in range(segments or self.config.segments):
            slow, fast = self.think(slow.detach(), fast.detach(), context)
            logits = self.output(slow[:, 1:])
            answers.append(logits.to(torch.promote_types(logits.dtype, torch.float32)))
        return answers

    def think(self, slow: Tensor, fast: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """One segment: `fast_steps` of the fast level for each step of the slow one. Returns both new states."""
        steps = self.config.slow_steps * self.config.fast_steps
        # All steps but the last one of each level. Those two follow, and always have gradients.
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.config.gradient == "full"):
            for step in range(1, steps):
                fast = self.fast(fast, slow + context)
                if step % self.config.fast_steps == 0:
                    slow = self.slow(slow, fast)
        fast = self.fast(fast, slow + context)
        return self.slow(slow, fast), fast


def halting_steps(answers: list[Tensor], empty: Tensor) -> Tensor:
    """The number of segments after which the answer to each board stays the same, (batch,) of int64.

    answers: the logits of each segment. empty: (batch, cells) of bool, True for the cells to fill in.
    """
    digits = torch.stack([logits.argmax(-1) for logits in answers])  # (segments, batch, cells)
    is_final = ((digits == digits[-1]) | ~empty).all(dim=2)
    return len(answers) + 1 - is_final.flip(0).cumprod(0).sum(0)
