"""The settings of reward_ddp.py, and its presets."""

from dataclasses import dataclass
from typing import Annotated, Literal

from ddp_course.data import density
from ddp_course.training.settings import (
    EXACT,
    FINITE,
    Bound,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    RunSettings,
    Share,
    at_least,
)


@dataclass(frozen=True)
class RewardConfig(RunSettings):
    """Train a reward model on pairs. The same flags mean the same training run at any number of processes."""

    preset: Literal["laptop", "tiny", "gpus"] = "laptop"
    steps: PositiveInt = 200
    final_learning_rate: NonNegativeFloat | None = 1e-4
    warmup_steps: NonNegativeInt = 10
    weight_decay: NonNegativeFloat = 0.01

    backbone: str = ""
    """The language model that reads, frozen: minigpt:PATH (a checkpoint or run directory of minigpt_ddp),
    hf:FOLDER_OR_NAME (Hugging Face transformers) or nanochat:SOURCE[/TAG[/STEP]]."""
    max_tokens: Annotated[int, at_least(2), EXACT] = 64
    """Tokens of a prompt and its completion; what is longer loses the prompt's beginning."""
    head_width: PositiveInt = 256
    """Units of the head's hidden layer."""
    pairs: str = "stdlib"
    """Where pairs come from: stdlib (Python's own sources, broken in known ways), a file or folder of Python code, a
    .jsonl file, or a folder with train.jsonl and validation.jsonl."""
    train_pairs: PositiveInt = 8000
    """Pairs to make for training, if they are made."""
    validation_pairs: PositiveInt = 1000
    """Pairs to make for validation, from files of their own."""
    pairs_per_update: PositiveInt = 64
    """Pairs of one optimizer step, over all ranks: the constant of the run."""
    micro_batch_size: PositiveInt = 32
    """Texts that one rank takes through the backbone at a time."""
    sample_pairs: NonNegativeInt = 3
    """Held-out pairs to show with their rewards at the end."""

    weight_mode: density.Mode = "none"
    """How a pair's weight enters the loss. none: not at all (notebook 18 found no gain from weights). mean: as a share
    of the global batch's weight. sum: as it is, so that a heavy batch takes a larger step."""
    weights: str = "computed"
    """computed (1 / how many training prompts end in a line of the same shape), or a JSON file {md5: weight}."""
    weight_cap: Annotated[float, FINITE, Bound("at least 1, the average", lambda value: value >= 1)] | None = 3.0
    """Upper limit of a pair's weight, as a multiple of the mean; None: no limit."""
    most_misses: Share = 0.01
    """Largest share of prompts that may be missing in the file of weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights != "computed" and self.weight_mode == "none":
            raise ValueError(f"--weights {self.weights} has no effect with --weight-mode none; give mean or sum")


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
