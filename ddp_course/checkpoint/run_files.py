"""The files of a run directory, and how a folder with a run is recognised by them."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from ddp_course.base.atomic_file import is_left_by_a_kill
from ddp_course.base.errors import InputError
from ddp_course.base.json_file import read_object

CONFIG, METRICS, CHECKPOINTS, SPEEDRUN = "config.json", "metrics.jsonl", "checkpoints", "speedrun.json"
STATE, CHECKSUM = "state.pt", "state.pt.crc32"  # in a folder step_NNNNNN of CHECKPOINTS
# Keys that each trainer, and the speedrun, writes into its file of settings.
TRAINER_KEYS, SPEEDRUN_KEYS = {"run_dir", "resume", "world_size"}, {"preset", "stages"}


@dataclass(frozen=True)
class RunContents:
    """The contents of a folder into which a run may be written.

    settings: those in config.json, or {}. holds_steps: whether there are checkpoints or metrics.
    """

    settings: dict = field(default_factory=dict)
    holds_steps: bool = False

    @property
    def script(self) -> str:
        """The script that wrote the run; "" if none did, or if it did not say so."""
        return str(self.settings.get("script", ""))


def contents_of(path: Path) -> RunContents:
    """Classify a folder by its contents: empty, or a run of this course.

    Raises InputError for a folder that is neither empty nor a run of this course, and for settings that cannot be read.
    """
    try:
        names = sorted(
            name for name in os.listdir(path) if not name.startswith(".write_test.") and not is_left_by_a_kill(name)
        )
    except OSError as error:
        raise InputError(f"cannot read the folder {str(path)!r}: {error.strerror}") from None
    saved = has_checkpoints(path)
    settings = {}
    if CONFIG in names:
        try:
            settings = read_object(path / CONFIG)
        except InputError as error:
            if saved:
                raise InputError(f"{error}; these were a run's settings, move it away to go on without it") from None
    if names and not saved and not settings.keys() >= TRAINER_KEYS:
        raise InputError(
            f"{path} is neither empty nor a run of this course (it holds {names[0]}); give another folder to write to"
        )
    return RunContents(settings, holds_steps=saved or METRICS in names)


def is_run(path: Path) -> bool:
    """Whether a run or a speedrun was begun in this folder."""
    return (
        has_checkpoints(path)
        or settings_of(path).keys() >= TRAINER_KEYS
        or settings_of(path, SPEEDRUN).keys() >= SPEEDRUN_KEYS
    )


def has_checkpoints(path: Path) -> bool:
    """Whether the folder has a checkpoint, whole or not."""
    try:
        steps = newest_first(path / CHECKPOINTS)
    except InputError:
        return False
    return any(os.path.isfile(step / name) for step in steps for name in (STATE, CHECKSUM))


def newest_first(folder: Path) -> list[Path]:
    """The folders step_N in `folder`, the highest step first; [] if there is no such folder."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the folder {str(folder)!r}: {getattr(error, 'strerror', error)}") from None
    steps = [folder / name for name in names if name.startswith("step_") and name[5:].isdecimal()]
    return sorted(steps, key=step_of, reverse=True)


def step_of(path: Path) -> int:
    """The step of a folder step_N."""
    return int(path.name.removeprefix("step_"))


def settings_of(path: Path, name: str = CONFIG) -> dict:
    """The settings in the file `name` of a folder; {} if the file is missing or cannot be read."""
    if not os.path.isfile(path / name):
        return {}
    try:
        return read_object(path / name)
    except InputError:
        return {}
