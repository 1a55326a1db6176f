"""Where a run's metrics go besides metrics.jsonl, if asked: TensorBoard, Weights & Biases. Both are optional extras."""

import os
import uuid
from dataclasses import asdict
from typing import Protocol

from ddp_course.base.errors import InputError
from ddp_course.checkpoint.run_directory import RunDirectory
from ddp_course.training.settings import RunSettings


class Tracker(Protocol):
    """Lives on rank 0 alone."""

    def write(self, step: int, numbers: dict[str, float]) -> None:
        """Take the numbers of update `step`. They are on the disk, or on their way, when this returns."""

    def close(self) -> None:
        """Send what is left."""


def trackers_of(run: RunDirectory, config: RunSettings) -> list[Tracker]:
    """Those that `config` asks for; none on ranks other than 0."""
    if not run.world.is_main:
        return []
    asked = (TensorBoard, config.tensorboard), (WeightsAndBiases, config.wandb)
    return [tracker(run, config) for tracker, wanted in asked if wanted]


class TensorBoard:
    """Event files in RUN_DIR/tensorboard."""

    def __init__(self, run: RunDirectory, config: RunSettings) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(run.path / "tensorboard")

    def write(self, step: int, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A run in the project ddp-course, or WANDB_PROJECT, under the name of the run directory.

    wandb reads its own variables: WANDB_MODE=offline writes RUN_DIR/wandb, to be sent later by `wandb sync`, and needs
    neither a network nor an account. A run that goes on after a stop goes on there too.
    """

    def __init__(self, run: RunDirectory, config: RunSettings) -> None:
        import wandb

        own_id = run.path / "wandb-id"
        if not own_id.exists():
            own_id.write_text(uuid.uuid4().hex[:12])
        project = os.environ.get("WANDB_PROJECT", "ddp-course")
        try:
            self._run = wandb.init(
                project=project,
                name=run.path.name,
                id=own_id.read_text(),
                resume="allow",
                dir=run.path,
                config=asdict(config),
            )
        except wandb.Error as error:  # no account, no network
            raise InputError(f"--wandb: {error}; to send the metrics later, set WANDB_MODE=offline") from None

    def write(self, step: int, numbers: dict[str, float]) -> None:
        self._run.log(numbers, step=step)

    def close(self) -> None:
        self._run.finish()
