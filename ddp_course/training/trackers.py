"""Send a run's metrics to TensorBoard or Weights & Biases, besides metrics.jsonl. Both packages are optional."""

import os
import uuid
from dataclasses import asdict
from typing import Protocol

from ddp_course.base.errors import InputError
from ddp_course.checkpoint.run_directory import RunDirectory
from ddp_course.training.settings import RunSettings


class Tracker(Protocol):
    """A receiver of metrics, on rank 0 only."""

    def write(self, step: int, numbers: dict[str, float]) -> None:
        """Write the numbers of step `step`. They are in a file, or queued to be sent, when this returns."""

    def close(self) -> None:
        """Send the numbers that are still queued."""


def trackers_of(run: RunDirectory, config: RunSettings) -> list[Tracker]:
    """The trackers that are on in `config`; none on ranks other than 0."""
    if not run.world.is_main:
        return []
    trackers = (TensorBoard, config.tensorboard), (WeightsAndBiases, config.wandb)
    return [tracker(run, config) for tracker, is_on in trackers if is_on]


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
    neither a network nor an account. A resumed run continues there.
    """

    def __init__(self, run: RunDirectory, config: RunSettings) -> None:
        import wandb

        id_file = run.path / "wandb-id"
        if not id_file.exists():
            id_file.write_text(uuid.uuid4().hex[:12])
        project = os.environ.get("WANDB_PROJECT", "ddp-course")
        try:
            self._run = wandb.init(
                project=project,
                name=run.path.name,
                id=id_file.read_text(),
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
