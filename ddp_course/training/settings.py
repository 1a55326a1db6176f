"""The settings that all trainers share, checked before anything is started: a mistake shows at once, not in an hour."""

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Literal

from ddp_course.training.optimization import warmup_cosine

LARGEST = 1e30  # of float32's 3.4e38
LEAST_WAIT, LONGEST_WAIT = 0.1, 2_000_000  # seconds; the sockets count milliseconds in 32 bits


@dataclass(frozen=True)
class RunSettings:
    """A trainer's settings start from these. It gives defaults of its own and adds what only it has."""

    preset: str = "laptop"
    """A named set of values; every other flag changes it. tiny: seconds. laptop: minutes. gpus: a machine of eight."""
    steps: int = 250
    """Optimizer steps in the whole run."""
    learning_rate: float = 3e-3
    """Peak learning rate, reached after the warm-up."""
    final_learning_rate: float | None = None
    """Learning rate at the last step, reached along a cosine; None: a tenth of the peak."""
    warmup_steps: int = 25
    """Steps over which the learning rate rises from zero."""
    weight_decay: float = 0.0
    """AdamW's decay: the share of a weight, times the learning rate, that a step takes away."""
    gradient_clip: float = 1.0
    """Largest norm of the gradient of the global batch; 0 turns clipping off."""

    max_nonfinite_steps: int = 3
    """Steps in a row with a loss that is NaN or infinite, after which the run ends with an error."""

    precision: Literal["auto", "float32", "tf32", "bfloat16", "float16", "float64"] = "auto"
    """The number format of matrix products; weights stay float32 (float64 for float64). auto: what is fastest here."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto takes GPUs if there are any."""
    timeout_seconds: float = 120
    """Seconds that a collective may wait for the other ranks before the job fails."""
    seed: int = 1
    """Decides the initial weights, the order of the data, and (with the rank) everything else that is random."""

    run_dir: str = ""
    """Folder that the run is written to; empty: a new one in runs/."""
    resume: str = "no"
    """no, auto (the newest valid checkpoint of --run-dir), or the path of a checkpoint."""
    log_every: int = 10
    """Steps between entries in metrics.jsonl."""
    validate_every: int = 50
    """Steps between validations; the last step always validates. 0: only then."""
    checkpoint_every: int = 50
    """Steps between checkpoints; the last step always saves one. 0: only then."""
    keep_checkpoints: int = 2
    """How many of the newest checkpoints stay; 0 keeps all."""
    max_seconds: float | None = None
    """Stop, with a checkpoint, after this many seconds of training."""
    exit_code_when_stopped: int = 75
    """Exit code of a run that was stopped before its last step, and has saved. 75: try again; 0: as if finished."""
    tensorboard: bool = False
    """Also write the metrics for TensorBoard."""
    wandb: bool = False
    """Also send the metrics to Weights & Biases; with WANDB_MODE=offline they are kept in --run-dir."""

    def __post_init__(self) -> None:
        """Raises ValueError for a value out of range. A subclass calls this before it looks at its own."""
        check_ranges(
            self,
            at_least_1=("steps", "log_every", "max_nonfinite_steps"),
            at_least_0=(
                "learning_rate",
                "final_learning_rate",
                "warmup_steps",
                "weight_decay",
                "gradient_clip",
                "seed",
                "validate_every",
                "checkpoint_every",
                "keep_checkpoints",
            ),
            above_0=("max_seconds",),
        )
        if not 0 <= self.exit_code_when_stopped <= 255:
            raise ValueError(f"--exit-code-when-stopped must be from 0 to 255, not {self.exit_code_when_stopped}")
        for tracker in ("tensorboard", "wandb"):  # each is the name of its package, and never a silent nothing
            if getattr(self, tracker) and importlib.util.find_spec(tracker) is None:
                raise ValueError(f"--{tracker} needs a package that is not installed: pip install {tracker}")

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0: a function of it, so all ranks and every resume agree."""
        final = self.learning_rate / 10 if self.final_learning_rate is None else self.final_learning_rate
        return warmup_cosine(step, self.steps, self.warmup_steps, self.learning_rate, final)


def check_ranges(
    config: object, *, at_least_1: Iterable[str] = (), at_least_0: Iterable[str] = (), above_0: Iterable[str] = ()
) -> None:
    """Raise ValueError, with the flag and what would be right, unless each named setting of `config` is in its range.

    None stands for "no limit" and is in every range; nan is in none. No number may be more than a type holds.
    """
    for names, expected, fine in (
        (at_least_1, "at least 1", lambda value: value >= 1),
        (at_least_0, "at least 0", lambda value: value >= 0),
        (above_0, "above 0", lambda value: value > 0),
    ):
        for name in names:
            value = getattr(config, name)
            if value is not None and not fine(value):
                raise ValueError(f"--{name.replace('_', '-')} must be {expected}, not {value}")
    _check_numbers(config)


def _check_numbers(config: object) -> None:
    """Raise ValueError, with the flag, for a number that what it goes into cannot hold, or that is none.

    A decimal number has to fit into float32 with room to be multiplied, a whole number into a float64 without
    rounding; but a seed uses all 64 bits.
    """
    for field in fields(config):
        value, flag = getattr(config, field.name), f"--{field.name.replace('_', '-')}"
        if isinstance(value, float) and not abs(value) <= LARGEST:
            raise ValueError(f"{flag} must be a number of at most {LARGEST:g}, not {value}")
        if field.name == "timeout_seconds" and not LEAST_WAIT <= value <= LONGEST_WAIT:
            raise ValueError(f"{flag} must be from {LEAST_WAIT} to {LONGEST_WAIT:,}, not {value}")
        if field.name == "seed" and value >= 2**64:
            raise ValueError(f"{flag} must be below 2**64, not {str(value)[:40]}")
        if isinstance(value, int) and field.name != "seed" and abs(value) > 2**53:
            raise ValueError(f"{flag} must be at most 2**53, not {str(value)[:40]}")
