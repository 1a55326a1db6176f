"""The folder of one run: who it belongs to, what is written into it, and how a stopped run is found again."""

import contextlib
import fcntl
import itertools
import json
import os
import time
import weakref
from collections.abc import Iterator
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

    Every rank knows the path; only rank 0 writes, and its `log` does nothing on the others. What cannot be written,
    because the disk is full, raises InputError.
    """

    path: Path
    world: World

    def begin(self, step: int, config: dict) -> None:
        """Write the settings; drop the metrics of updates after `step`, which a resumed run will log again.

        Checkpoints of later steps are set aside: they belong to a run that has been given up.
        """
        if not self.world.is_main:
            return
        with _told_in_one_line(self.path):
            checkpoint.set_aside_later_than(self.path, step)
            _replace(self.path / CONFIG, json.dumps(config, indent=2) + "\n")
            if (self.path / METRICS).exists():
                kept = [line for line in (self.path / METRICS).read_text().splitlines() if _step_of(line) <= step]
                _replace(self.path / METRICS, "".join(line + "\n" for line in kept))

    def log(self, record: dict) -> None:
        """Append one record to the metrics. It is on its way to the disk when this returns."""
        self._append(METRICS, json.dumps(record) + "\n")

    def add_sample(self, step: int, text: str) -> None:
        """Append a text that the model wrote after `step` updates."""
        self._append(SAMPLES, f"=== after {step} updates ===\n{text}\n")

    def _append(self, name: str, text: str) -> None:
        if self.world.is_main:
            with _told_in_one_line(self.path / name), open(self.path / name, "a") as file:
                file.write(text)


def open_run(world: World, requested: str, resume: str, kind: str) -> tuple[RunDirectory, Path | None]:
    """Create a run's folder, or find the one to go on with. Returns it and the checkpoint to resume from.

    `requested`: the folder, or "" for `runs/<kind>-<date>-<time>`. `resume`: "no", "auto" (the newest valid
    checkpoint of the requested folder, or a fresh start if it has none) or the path of a checkpoint.
    Rank 0 decides for all ranks. Raises InputError on all of them, above all rather than write into a folder
    that already holds a run, or in which another job is writing. The folder is held until the RunDirectory is gone.
    """
    held: list[int] = []
    path, found = from_rank_0(world, lambda: _decide(requested, resume, kind, held))
    run_directory = RunDirectory(Path(path), world)
    for descriptor in held:
        weakref.finalize(run_directory, os.close, descriptor)
    return run_directory, Path(found) if found else None


def _decide(requested: str, resume: str, kind: str, held: list[int]) -> tuple[str, str | None]:
    path = Path(requested)
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
    elif not requested:
        path = _fresh_folder(kind)
    goes_on = resume == "auto" or (found and found.absolute().parent.parent == path.absolute())
    if (path / METRICS).exists() and not goes_on:
        raise InputError(f"{path} already holds a run; give another one, or set resume to auto to go on with it")
    held.append(_hold(_writable(path)))
    if found:
        print(f"resuming from {found}", flush=True)
    elif resume == "auto":
        print(f"nothing to resume in {path}: starting afresh", flush=True)
    if resume == "auto" and found:
        checkpoint.name_as_latest(path, found)
    return str(path), str(found) if found else None


def _fresh_folder(kind: str) -> Path:
    """runs/<kind>-<date>-<time>, with a number behind it if that exists: two jobs can start in the same second."""
    name = time.strftime(f"runs/{kind}-%Y%m%d-%H%M%S")
    for number in itertools.count(1):
        path = Path(name if number == 1 else f"{name}-{number}")
        with _told_in_one_line(path), contextlib.suppress(FileExistsError):
            path.mkdir(parents=True)
            return path


def _hold(path: Path) -> int:
    """Keep other jobs out of the folder, until the descriptor that this returns is closed: by a crash, too."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise InputError(f"another job is writing into {path}; give another folder, or end that job first") from None
    except OSError:
        pass  # a file system that knows no locks
    return descriptor


@contextlib.contextmanager
def _told_in_one_line(where: object) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {where}: {error.strerror}") from None


def _writable(path: str | Path) -> Path:
    """The folder, made if need be; proves that a file can be written there before an hour is spent on it."""
    path = Path(path)
    with _told_in_one_line(f"into the run directory {path}"):
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".write_test.{os.getpid()}"
        probe.write_bytes(b"0" * 4096)
        probe.unlink()
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
