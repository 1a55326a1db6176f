"""The folder of one run: who it belongs to, what is written into it, and how a stopped run is found again."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from ddp_course.errors import InputError
from ddp_course.parallel import checkpoint
from ddp_course.parallel.process_group import World
from ddp_course.parallel.sync import from_rank_0

CONFIG, METRICS, SAMPLES = "config.json", "metrics.jsonl", "samples.txt"


@dataclass(frozen=True)
class RunDirectory:
    """`config.json`, `metrics.jsonl` (one object a line), `samples.txt`, `checkpoints/` and `latest`.

    Every rank knows the path; only rank 0 writes, and its `log` does nothing on the others.
    """

    path: Path
    world: World

    def begin(self, step: int, config: dict) -> None:
        """Write the settings; drop the metrics of updates after `step`, which a resumed run will log again.

        Checkpoints of later steps are set aside: they belong to a run that has been given up.
        """
        if not self.world.is_main:
            return
        checkpoint.set_aside_later_than(self.path, step)
        _replace(self.path / CONFIG, json.dumps(config, indent=2) + "\n")
        if (self.path / METRICS).exists():
            kept = [line for line in (self.path / METRICS).read_text().splitlines() if _step_of(line) <= step]
            _replace(self.path / METRICS, "".join(line + "\n" for line in kept))

    def log(self, record: dict) -> None:
        """Append one record to the metrics. It is on its way to the disk when this returns."""
        if self.world.is_main:
            with open(self.path / METRICS, "a") as file:
                file.write(json.dumps(record) + "\n")

    def add_sample(self, step: int, text: str) -> None:
        """Append a text that the model wrote after `step` updates."""
        if self.world.is_main:
            with open(self.path / SAMPLES, "a") as file:
                file.write(f"=== after {step} updates ===\n{text}\n")


def open_run(world: World, requested: str, resume: str, kind: str) -> tuple[RunDirectory, Path | None]:
    """Create a run's folder, or find the one to go on with. Returns it and the checkpoint to resume from.

    `requested`: the folder, or "" for `runs/<kind>-<date>-<time>`. `resume`: "no", "auto" (the newest valid
    checkpoint of the requested folder, or a fresh start if it has none) or the path of a checkpoint.
    Rank 0 decides for all ranks. Raises InputError on all of them, above all rather than write into a folder
    that already holds a run.
    """
    path, found = from_rank_0(world, lambda: _decide(requested, resume, kind))
    return RunDirectory(Path(path), world), Path(found) if found else None


def _decide(requested: str, resume: str, kind: str) -> tuple[str, str | None]:
    path = Path(requested or time.strftime(f"runs/{kind}-%Y%m%d-%H%M%S"))
    found: Path | None = None
    if resume == "auto":
        if not requested:
            raise InputError("--resume auto needs --run-dir: which run should go on?")
        found = checkpoint.newest_valid(path)
    elif resume != "no":
        found = Path(resume)
        damage = checkpoint.problem(found)
        if damage:
            raise InputError(f"cannot resume from {found}: {damage}")
        path = path if requested else found.absolute().parent.parent
    goes_on = resume == "auto" or (found and found.absolute().parent.parent == path.absolute())
    if (path / METRICS).exists() and not goes_on:
        raise InputError(f"{path} already holds a run; give another one, or set resume to auto to go on with it")
    if found:
        print(f"resuming from {found}", flush=True)
    elif resume == "auto":
        print(f"nothing to resume in {path}: starting afresh", flush=True)
    return str(_writable(path)), str(found) if found else None


def _writable(path: str | Path) -> Path:
    """The folder, made if need be; proves that a file can be written there before an hour is spent on it."""
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".write_test.{os.getpid()}"
        probe.write_bytes(b"0" * 4096)
        probe.unlink()
    except OSError as error:
        raise InputError(f"cannot write into the run directory {path}: {error.strerror}") from None
    return path


def _step_of(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except ValueError:
        return float("inf")  # the last line of a killed run can be torn


def _replace(path: Path, text: str) -> None:
    """Write the file whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text)
    os.replace(temporary, path)
