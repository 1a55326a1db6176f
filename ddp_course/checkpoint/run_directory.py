"""The folder of one run: its lock, its files, and the checkpoint from which a stopped run resumes."""

import contextlib
import fcntl
import itertools
import json
import math
import os
import socket
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from ddp_course.base.atomic_file import replacing
from ddp_course.base.errors import InputError, write_errors
from ddp_course.base.json_file import parse
from ddp_course.checkpoint import checkpoint, run_files
from ddp_course.checkpoint.run_files import CONFIG, METRICS
from ddp_course.distributed.process_group import World
from ddp_course.distributed.sync import from_rank_0

SAMPLES = "samples.txt"


@dataclass(frozen=True)
class RunDirectory:
    """`config.json`, `metrics.jsonl` (one object per line), `samples.txt`, `checkpoints/` and `latest`.

    Only rank 0 writes: `log` and `add_sample` do nothing on the others. A failed write, such as to a full disk, raises
    InputError. resumed_settings: those of the run that is resumed, {} for a new one.
    """

    path: Path
    world: World
    script: str = ""
    resumed_settings: Mapping[str, object] = field(default_factory=dict)

    def begin(self, step: int, config: dict) -> dict:
        """Write the settings; drop the metrics of steps after `step`, which a resumed run logs again (collective).

        Checkpoints of later steps are set aside: they belong to a run that is not continued. So are metrics that cannot
        be read. Returns the settings as written: with the script, and under torchrun the job.
        """
        settings = dict(config) | {"script": self.script}
        if job := _job():
            settings["job"] = job
        return from_rank_0(self.world, lambda: self._begin(step, settings))

    def _begin(self, step: int, settings: dict) -> dict:
        with write_errors(self.path):
            run_files.contents_of(self.path)  # again: another program may have written there meanwhile
            checkpoint.set_aside_later_than(self.path, step)
            with replacing(self.path / CONFIG) as file:
                file.write(json.dumps(settings, indent=2) + "\n")
        if (self.path / METRICS).exists():
            with write_errors(self.path / METRICS):
                _drop_after(self.path / METRICS, step)
        return settings

    def log(self, record: dict) -> None:
        """Append one record to the metrics, and close the file. NaN and infinity, which JSON lacks, become null."""
        finite = {name: None if isinstance(x, float) and not math.isfinite(x) else x for name, x in record.items()}
        self._append(METRICS, json.dumps(finite, allow_nan=False) + "\n")

    def first_record(self) -> dict[str, float]:
        """The first metrics record of a resumed run; {} for a new run, or without the file."""
        if (self.path / METRICS).exists():
            with open(self.path / METRICS, "rb") as file:
                return next((record for record in map(parse, file) if record.get("loss") is not None), {})
        return {}

    def add_sample(self, step: int, text: str) -> None:
        """Append a text that the model wrote after `step` steps."""
        self._append(SAMPLES, f"=== after {step} steps ===\n{text}\n")

    def _append(self, name: str, text: str) -> None:
        if self.world.is_main:
            with write_errors(self.path / name), open(self.path / name, "a", encoding="utf-8") as file:
                file.write(text)


def open_run(world: World, requested: str, resume: str, kind: str) -> tuple[RunDirectory, Path | None]:
    """Create a run's folder, or find the one to resume. Returns it and the checkpoint to resume from, or None.

    `requested`: the folder, or "" for `runs/<kind>-<date>-<time>`. `resume`: "no", "auto" (the newest valid
    checkpoint of the requested folder, or a fresh start if it has none) or the path of a checkpoint. An attempt that
    torchrun restarted resumes the run that the attempt before it began, whatever `resume` says.
    Rank 0 decides for all ranks. Raises InputError on all of them, among others for a folder that holds a run already,
    or other files, or into which another job is writing. The folder is locked until the RunDirectory is freed.
    """
    locks: list[int] = []
    path, resume_from, resumed_settings = from_rank_0(world, lambda: _decide(requested, resume, kind, locks))
    run_directory = RunDirectory(Path(path), world, f"{kind}_ddp", resumed_settings)
    for descriptor in locks:
        weakref.finalize(run_directory, os.close, descriptor)
    return run_directory, Path(resume_from) if resume_from else None


def _decide(requested: str, resume: str, kind: str, locks: list[int]) -> tuple[str, str | None, dict]:
    """The part of `open_run` for rank 0: the run's folder, the checkpoint to resume from, and that one's settings.

    The descriptor of the folder's lock is appended to `locks`, because it is of use to this process only.
    """
    source, job = None, _job()
    if resume == "auto" and not requested:
        raise InputError("--resume auto needs --run-dir: which run should go on?")
    if resume not in ("no", "auto"):
        source = Path(resume)
        if damage := checkpoint.problem(source):
            raise InputError(f"cannot resume from {resume!r}: {damage}")
    home = source.absolute().parent.parent if source else None  # the run that the checkpoint belongs to
    if source and not requested and not run_files.is_run(home):
        raise InputError(f"{source} does not lie in a run's folder checkpoints/; give --run-dir, a folder to write to")
    path = Path(requested) if requested else home or _folder_of_job(job, kind) or _fresh_folder(kind)
    with write_errors(f"into the run directory {path}"):
        path.mkdir(parents=True, exist_ok=True)  # first: a path like new/.. exists only if new does
    contents = run_files.contents_of(path)
    if contents.script not in ("", f"{kind}_ddp"):
        raise InputError(f"{path} holds a run of {contents.script}, not one of {kind}_ddp; give another folder")
    restarted = job is not None and contents.settings.get("job") == job
    if contents.holds_steps and not restarted and resume != "auto" and (home is None or home != path.absolute()):
        raise InputError(f"{path} already holds a run; give another one, or set resume to auto to go on with it")
    _check_writable(path)
    locks.append(_lock(path))
    resume_from = source
    if resume == "auto" or restarted:
        resume_from = checkpoint.newest_valid(path) or source
        if not resume_from:
            print(f"nothing to resume in {path}: starting afresh", flush=True)
    if resume_from:
        print(f"resuming from {resume_from}", flush=True)
        if resume_from != source:
            checkpoint.write_name(path, checkpoint.LATEST, resume_from)
    resumed_settings = run_files.settings_of(resume_from.absolute().parent.parent) if resume_from else {}
    return str(path), str(resume_from) if resume_from else None, resumed_settings


def _job() -> str | None:
    """A name that the attempts of one torchrun job share, and no other job has; None without torchrun.

    Jobs can have the same run id, and processes in two containers the same number. So the name has a hash of the
    torchrun process too, which starts the ranks of this machine in every attempt: of its number and of the time from
    the start of the machine to its own. Its `create_time` moves when the clock is set.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    agent = psutil.Process(os.getppid())
    return f"{os.environ['TORCHELASTIC_RUN_ID']} on {socket.gethostname()}, {agent.pid} of {hash(agent)}"


def _folder_of_job(job: str | None, kind: str) -> Path | None:
    """The folder of runs/ that an earlier attempt of this job has made; None if there was none."""
    folders = Path("runs").glob(f"{kind}-*") if job else ()
    return next((path for path in folders if run_files.settings_of(path).get("job") == job), None)


def _fresh_folder(kind: str) -> Path:
    """Make runs/<kind>-<date>-<time>, with a number appended if it exists: two jobs can start in the same second."""
    name = time.strftime(f"runs/{kind}-%Y%m%d-%H%M%S")
    for number in itertools.count(1):
        path = Path(name if number == 1 else f"{name}-{number}")
        with write_errors(path), contextlib.suppress(FileExistsError):
            path.mkdir(parents=True)
            return path


def _lock(path: Path) -> int:
    """Lock the folder against other jobs, until the returned descriptor is closed, which a crash does too."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise InputError(f"another job is writing into {path}; give another folder, or end that job first") from None
    except OSError:
        pass  # a file system without locks
    return descriptor


def _check_writable(path: Path) -> None:
    """Raise InputError unless a file can be written into the folder, before hours of training are spent."""
    with write_errors(f"into the run directory {path}"):
        probe = path / f".write_test.{os.getpid()}"
        probe.write_bytes(b"0" * 4096)
        probe.unlink()


def _drop_after(path: Path, step: int) -> None:
    """Drop the records of steps after `step`; move lines that are no records to another file of the same folder."""
    records, other_lines = [], {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            record_step = parse(line)["step"]
        except (ValueError, TypeError, KeyError):
            record_step = None
        if type(record_step) is not int:
            other_lines[number] = line
        elif record_step <= step:
            records.append(line)
    if other_lines:
        aside = checkpoint.free_name(path)
        with replacing(aside, "wb") as file:
            file.writelines(line + b"\n" for line in other_lines.values())
        print(
            f"{len(other_lines)} line(s) of {path} are no records of a run, the first is line {min(other_lines)}: "
            f"they are now in {aside}",
            flush=True,
        )
    with replacing(path, "wb") as file:
        file.writelines(line + b"\n" for line in records)
