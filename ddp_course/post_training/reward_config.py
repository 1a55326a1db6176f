"""The settings of reward_ddp.py, and its presets."""

from dataclasses import dataclass
from typing import Literal

from ddp_course.data import density
from ddp_course.training.settings import RunSettings, check_ranges


@dataclass(frozen=True)
class RewardConfig(RunSettings):
    """Train a reward model on pairs. The same flags mean the same training run at any number of processes."""

    preset: Literal["laptop", "tiny", "gpus"] = "laptop"
    steps: int = 200
    final_learning_rate: float | None = 1e-4
    warmup_steps: int = 10
    weight_decay: float = 0.01

    backbone: str = ""
    """The language model that reads, frozen: minigpt:PATH (a checkpoint or run directory of minigpt_ddp),
    hf:FOLDER_OR_NAME (Hugging Face transformers) or nanochat:SOURCE[/TAG[/STEP]]."""
    max_tokens: int = 64
    """Tokens of a prompt and its completion; what is longer loses the prompt's beginning."""
    head_width: int = 256
    """Units of the head's hidden layer."""
    pairs: str = "stdlib"
    """Where pairs come from: stdlib (Python's own sources, broken in known ways), a file or folder of Python code, a
    .jsonl file, or a folder with train.jsonl and validation.jsonl."""
    train_pairs: int = 8000
    """Pairs to make for training, if they are made."""
    validation_pairs: int = 1000
    """Pairs to make for validation, from files of their own."""
    pairs_per_update: int = 64
    """Pairs of one optimizer step, over all ranks: the constant of the run."""
    micro_batch_size: int = 32
    """Texts that one rank takes through the backbone at a time."""
    sample_pairs: int = 3
    """Held-out pairs to show with their rewards at the end."""

    weight_mode: density.Mode = "mean"
    """How a pair's weight enters the loss. none: not at all. mean: as a share of the global batch's weight. sum: as it
    is, so that a heavy batch takes a larger step."""
    weights: str = "computed"
    """computed (1 / how many training prompts end in a line of the same shape), or a JSON file {md5: weight}."""
    weight_cap: float | None = 3.0
    """No pair counts more than this many average ones; None: no limit."""
    most_misses: float = 0.01
    """Share of prompts that may be missing in the file of weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(
            self,
            at_least_1=("train_pairs", "validation_pairs", "head_width", "pairs_per_update", "micro_batch_size"),
            at_least_0=("sample_pairs",),
        )
        if self.weight_cap is not None and not self.weight_cap >= 1:
            raise ValueError(f"--weight-cap must be at least 1, the average, not {self.weight_cap}")
        if not 0 <= self.most_misses < 1:
            raise ValueError(f"--most-misses must be a share from 0 to below 1, not {self.most_misses}")


PRESETS = {
    "laptop": RewardConfig(),
    "tiny": RewardConfig(
        preset="tiny",
        train_pairs=256,
        validation_pairs=64,
        max_tokens=64,
        head_width=32,
        pairs_per_update=16,
        micro_batch_size=16,
        steps=20,
        warmup_steps=2,
        precision="float32",
        validate_every=10,
        checkpoint_every=10,
        log_every=1,
    ),
    "gpus": RewardConfig(
        preset="gpus",
        train_pairs=200_000,
        validation_pairs=5000,
        max_tokens=512,
        head_width=1024,
        pairs_per_update=512,
        micro_batch_size=64,
        steps=1000,
        learning_rate=1e-3,
        warmup_steps=50,
    ),
}
