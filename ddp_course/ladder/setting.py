"""Settings of the ladder, the global batches that follow from them, and a rank's share of a batch."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ddp_course.data.windows import IGNORED, window_starts

VOCABULARY = 61  # tokens; the text is random, because equality does not depend on the text
CORPUS = 4096  # tokens
DROPOUT = 0.2  # of the rungs with dropout

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Setting:
    """The settings of a rung: the model and its sizes, the seed of weights and batches, and the fault to inject."""

    model: Literal["minigpt", "mlp", "recurrent"] = "minigpt"
    seed: int = 1
    layers: int = 2
    width: int = 16
    context: int = 8
    windows: int = 16  # of a global batch
    steps: int = 6
    fault: str = "none"  # of FAULTS
    heads: int = 2  # of MiniGPT's attention; rungs that shard it take more

    @property
    def tokens(self) -> int:
        """Tokens of a full global batch."""
        return self.windows * self.context


def global_batch(setting: Setting, step: int, windows: int | None = None) -> Batch:
    """Inputs and targets of a step, (windows, context) of int64: the same on every rank and at any world size."""
    text = np.random.default_rng(setting.seed).integers(VOCABULARY, size=CORPUS)
    count = setting.windows if windows is None else windows
    starts = window_starts(setting.seed, step, count, CORPUS, setting.context)
    block = torch.from_numpy(text[starts[:, None] + np.arange(setting.context + 1)])
    return block[:, :-1], block[:, 1:]


def share(batch: Batch, rank: int, ranks: int) -> Batch:
    """A rank's rows of a global batch. Shares differ by one row if the rows do not divide, and can be empty."""
    inputs, targets = batch
    return inputs.tensor_split(ranks)[rank], targets.tensor_split(ranks)[rank]


def target_count(batch: Batch) -> int:
    """The number of targets that are not ignored by the loss."""
    return int((batch[1] != IGNORED).sum())
