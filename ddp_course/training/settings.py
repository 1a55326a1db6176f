"""The settings that all trainers share, checked before anything is started: a mistake shows at once, not in an hour."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, get_args, get_type_hints

from ddp_course.training.optimization import warmup_cosine


@dataclass(frozen=True)
class Bound:
    """A condition on a number, and the words for it in an error. Every number among the settings has one or more."""

    words: str
    holds: Callable[[float], bool]


def at_least(least: float) -> Bound:
    return Bound(f"at least {least:,}", lambda value: value >= least)


def between(least: float, most: float) -> Bound:
    return Bound(f"from {least:,} to {most:,}", lambda value: least <= value <= most)


EXACT = Bound("at most 2**53", lambda value: value <= 2**53)  # a float64 holds it without rounding
FINITE = Bound("a number of at most 1e+30", lambda value: value <= 1e30)  # a float32 holds it, times some millions
PositiveInt = Annotated[int, at_least(1), EXACT]
NonNegativeInt = Annotated[int, at_least(0), EXACT]
PositiveFloat = Annotated[float, FINITE, Bound("above 0", lambda value: value > 0)]
NonNegativeFloat = Annotated[float, at_least(0), FINITE]
Share = Annotated[float, Bound("from 0 to below 1", lambda value: 0 <= value < 1)]
Repetitions = Annotated[int, between(1, 1000)]  # within a step, so that neither a time budget nor SIGTERM ends them
Seed = Annotated[int, at_least(0), Bound("below 2**64", lambda value: value < 2**64)]
Timeout = Annotated[float, between(0.1, 2_000_000)]  # seconds; the sockets count milliseconds in 32 bits


@dataclass(frozen=True)
class RunSettings:
    """The base of each trainer's settings, which changes defaults and adds its own fields."""

    preset: str = "laptop"
    """A named set of values; every other flag changes it. tiny: seconds. laptop: minutes. gpus: a machine of eight."""
    steps: PositiveInt = 250
    """Optimizer steps in the whole run."""
    learning_rate: NonNegativeFloat = 3e-3
    """Peak learning rate, reached after the warm-up."""
    final_learning_rate: NonNegativeFloat | None = None
    """Learning rate at the end of the cosine, one step after the last; None: a tenth of the peak."""
    warmup_steps: NonNegativeInt = 25
    """Steps over which the learning rate rises from zero."""
    weight_decay: NonNegativeFloat = 0.0
    """AdamW's decay: the share of a weight, times the learning rate, that a step takes away."""
    gradient_clip: NonNegativeFloat = 1.0
    """Largest norm of the gradient of the global batch; 0 turns clipping off."""

    max_nonfinite_steps: PositiveInt = 3
    """Steps in a row with a loss that is NaN or infinite, after which the run ends with an error."""

    precision: Literal["auto", "float32", "tf32", "bfloat16", "float16", "float64"] = "auto"
    """The number format of matrix products; weights stay float32 (float64 for float64). auto: what is fastest here."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto takes GPUs if there are any."""
    timeout_seconds: Timeout = 120
    """Seconds that a collective may wait for the other ranks before the job fails."""
    seed: Seed = 1
    """Decides the initial weights, the order of the data, and (with the rank) everything else that is random."""

    run_dir: str = ""
    """Folder that the run is written to; empty: a new one in runs/."""
    resume: str = "no"
    """no, auto (the newest valid checkpoint of --run-dir), or the path of a checkpoint."""
    log_every: PositiveInt = 10
    """Steps between entries in metrics.jsonl."""
    validate_every: NonNegativeInt = 50
    """Steps between validations; the last step always validates. 0: only then."""
    checkpoint_every: NonNegativeInt = 50
    """Steps between checkpoints; the last step always saves one. 0: only then."""
    keep_checkpoints: NonNegativeInt = 2
    """How many of the newest checkpoints stay; 0 keeps all."""
    max_seconds: PositiveFloat | None = None
    """Stop, with a checkpoint, after this many seconds of training."""
    exit_code_when_stopped: Annotated[int, between(0, 255)] = 75
    """Exit code of a run that was stopped before its last step, and has saved. 75: try again; 0: as if finished."""
    tensorboard: bool = False
    """Also write the metrics for TensorBoard."""
    wandb: bool = False
    """Also send the metrics to Weights & Biases; with WANDB_MODE=offline they are kept in --run-dir."""

    def __post_init__(self) -> None:
        """Raises ValueError for a value out of range. A subclass calls this before it looks at its own."""
        check_bounds(self)
        for tracker in ("tensorboard", "wandb"):  # the names of their packages as well
            if getattr(self, tracker) and importlib.util.find_spec(tracker) is None:
                raise ValueError(f"--{tracker} needs a package that is not installed: pip install {tracker}")

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0: a function of it, so all ranks and every resume agree."""
        final = self.learning_rate / 10 if self.final_learning_rate is None else self.final_learning_rate
        return warmup_cosine(step, self.steps, self.warmup_steps, self.learning_rate, final)


def check_bounds(config: object) -> None:
    """Raise ValueError, with the flag and its bound, unless each number of `config` is within its bounds.

    None stands for "no limit" and is within all; nan is within none.
    """
    for name, hint in get_type_hints(type(config), include_extras=True).items():
        value = getattr(config, name)
        for bound in bounds(hint):
            if value is not None and not bound.holds(value):
                raise ValueError(f"{flag(name)} must be {bound.words}, not {str(value)[:40]}")


def bounds(hint: object) -> list[Bound]:
    """The bounds in the annotations of a type, or of the members of a union."""
    return [bound for kind in (hint, *get_args(hint)) for bound in getattr(kind, "__metadata__", ())]


def flag(name: str) -> str:
    """The flag of a setting."""
    return f"--{name.replace('_', '-')}"
