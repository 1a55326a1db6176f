"""Checkpoints that are whole or absent, prove it, and hold everything a run needs to go on as if never stopped.

A checkpoint is a folder `step_NNNNNN` with `state.pt` and its CRC-32. It is written under a temporary name,
flushed to the disk, and renamed: a crash at any byte leaves the previous checkpoint as the newest valid one.
CRC-32 and not a cryptographic hash: it has to find damage, not forgery, and costs a fraction of the time.
Every function here runs on one rank; the caller tells the others (see `sync.from_rank_0`).
"""

import os
import pickle
import random
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from ddp_course.errors import InputError
from ddp_course.parallel.process_group import World

STATE, CHECKSUM, LATEST = "state.pt", "state.pt.crc32", "latest"
TENSORS = "tensors"  # a folder beside checkpoints/, see distributed_state
CHUNK = 2**20  # bytes read at a time


def save(run_dir: Path, step: int, state: dict, keep: int = 0) -> Path:
    """Write `state` (tensors, numbers, strings, lists, dicts) as `run_dir/checkpoints/step_NNNNNN`.

    With `keep` > 0 only that many newest checkpoints stay. A valid checkpoint of the same step is left alone.
    Raises InputError when the disk is full or the folder cannot be written; nothing half-written remains.
    """
    folder = run_dir / "checkpoints"
    final = folder / f"step_{step:06d}"
    if final.exists() and problem(final) is None:
        name_as_latest(run_dir, final)  # a kill may have come between the two
        return final
    temporary = folder / f".step_{step:06d}.{os.getpid()}.tmp"
    try:
        shutil.rmtree(temporary, ignore_errors=True)  # in a container, a killed job may have had the same pid
        temporary.mkdir(parents=True)
        with open(temporary / STATE, "wb") as file:
            writer = _CheckedWriter(file)
            with _no_checksums_inside():
                torch.save(state, writer)
            _flush_to_disk(file)
        with open(temporary / CHECKSUM, "w") as file:
            file.write(f"{writer.checksum:08x}  {STATE}\n")
            _flush_to_disk(file)
        shutil.rmtree(final, ignore_errors=True)  # only ever a damaged one: a valid one returned above
        os.rename(temporary, final)
        _flush_folder_to_disk(folder)
        name_as_latest(run_dir, final)
        abandoned = folder.glob(".step_*.tmp")  # by saves that were killed
        superseded = _newest_first(run_dir)[keep:] if keep > 0 else []
        for old in (*abandoned, *superseded):
            shutil.rmtree(old)
    except (OSError, RuntimeError) as error:  # torch's C++ writer reports a full disk as RuntimeError
        shutil.rmtree(temporary, ignore_errors=True)
        reason = error.strerror if isinstance(error, OSError) else writer.problem or str(error)
        raise InputError(f"cannot write checkpoint {final}: {reason}") from error
    return final


def load(checkpoint: Path, wish: str = "resume from") -> dict:
    """Read a checkpoint onto the CPU. Raises InputError if it is missing, damaged or not one of ours.

    `wish`: what the message says cannot be done with it.
    """
    found = problem(checkpoint)
    if found:
        raise InputError(f"cannot {wish} {checkpoint}: {found}")
    try:
        return torch.load(checkpoint / STATE, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError) as error:
        raise InputError(
            f"cannot {wish} {checkpoint}: {STATE} holds more than tensors, numbers, strings, lists and dicts "
            f"({str(error).splitlines()[0]})"
        ) from None


def problem(checkpoint: Path) -> str | None:
    """Why `checkpoint` cannot be used, in a few words; None if it is whole."""
    if not checkpoint.is_dir():
        return "there is no such checkpoint folder"
    try:
        expected = (checkpoint / CHECKSUM).read_text().split()[0]
        found = f"{_checksum(checkpoint / STATE):08x}"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing; a checkpoint holds {STATE} and {CHECKSUM}"
    except (OSError, IndexError, UnicodeDecodeError) as error:
        return f"{CHECKSUM} cannot be read ({error})"
    if found != expected:
        size = (checkpoint / STATE).stat().st_size
        return f"{STATE} ({size} bytes) does not match its checksum: it is truncated or damaged"
    return None


def newest_valid(run_dir: Path, say: Callable[[str], None] = print) -> Path | None:
    """The newest whole checkpoint of a run; None if the run has none at all.

    Says which damaged ones it passed over. Raises InputError if there are checkpoints but none is whole:
    starting afresh would then overwrite a run without a word.
    """
    checkpoints = _newest_first(run_dir)
    for checkpoint in checkpoints:
        found = problem(checkpoint)
        if found is None:
            return checkpoint
        say(f"passing over {checkpoint}: {found}")
    if checkpoints:
        raise InputError(f"none of the {len(checkpoints)} checkpoints in {run_dir / 'checkpoints'} is whole")
    return None


def name_as_latest(run_dir: Path, checkpoint: Path) -> None:
    """Let the file `latest` of a run name this one of its checkpoints."""
    if not (run_dir / LATEST).exists() or (run_dir / LATEST).read_text().strip() != checkpoint.name:
        _write_atomically(run_dir / LATEST, checkpoint.name + "\n")


def set_aside_later_than(run_dir: Path, step: int) -> None:
    """Rename the checkpoints after `step`, and their tensors: a run that goes on from there will never have made them.

    Left in place they would be found as the newest, and counted among those to keep. Nothing is deleted.
    """
    for path in _newest_first(run_dir):
        if _step_of(path) > step:
            aside = path.with_name(f"set_aside_{path.name}")
            number = 0
            while aside.exists():
                number += 1
                aside = path.with_name(f"set_aside_{path.name}_{number}")
            path.rename(aside)
            if (run_dir / TENSORS / path.name).exists():
                (run_dir / TENSORS / path.name).rename(run_dir / TENSORS / aside.name)


def gather_random_states(world: World) -> list[dict]:
    """The random-number states of every rank, in order of rank (collective: call it on all ranks)."""
    version, internal, gauss = random.getstate()
    mine = {"torch": torch.get_rng_state(), "python": [version, list(internal), gauss]}
    if world.device.type == "cuda":
        mine["cuda"] = torch.cuda.get_rng_state(world.device)
    states: list[dict] = [{} for _ in range(world.size)]
    dist.all_gather_object(states, mine)
    return states


def restore_random_state(state: dict, device: torch.device) -> None:
    """Put this process's random-number generators back to one rank's entry of `gather_random_states`."""
    torch.set_rng_state(state["torch"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)


class _CheckedWriter:
    """A file that computes the checksum of what passes through it, so that nothing is read twice."""

    def __init__(self, file) -> None:
        self._file = file
        self.checksum = 0
        self.problem = ""

    def write(self, data) -> int:
        self.checksum = zlib.crc32(data, self.checksum)
        try:
            return self._file.write(data)
        except OSError as error:
            self.problem = error.strerror
            raise

    def flush(self) -> None:
        self._file.flush()


@contextmanager
def _no_checksums_inside() -> Iterator[None]:
    """torch.save computes a CRC-32 of every tensor; ours is of the whole file, and one of them is enough."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


def _checksum(path: Path) -> int:
    checksum = 0
    with open(path, "rb") as file:
        while data := file.read(CHUNK):
            checksum = zlib.crc32(data, checksum)
    return checksum


def _newest_first(run_dir: Path) -> list[Path]:
    found = [path for path in (run_dir / "checkpoints").glob("step_*") if path.name[5:].isdigit()]
    return sorted(found, key=_step_of, reverse=True)


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("step_"))


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w") as file:
        file.write(text)
        _flush_to_disk(file)
    os.replace(temporary, path)
    _flush_folder_to_disk(path.parent)


def _flush_to_disk(file) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_folder_to_disk(folder: Path) -> None:
    """Without this a power cut may forget the rename although the file's bytes are safe."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
