"""Write and read checkpoints that are whole or absent, with checksums, and the random states of a run.

A checkpoint is a folder `step_NNNNNN` with `state.pt` and a file with its checksum. It is written under a temporary
name, flushed to the disk, and renamed: a crash at any byte leaves the previous checkpoint as the newest valid one.
The checksum is CRC-32, not a cryptographic hash: it has to find damage, not forgery, and costs a fraction of the time.
Nothing here communicates. Rank 0 saves; the caller sends the result to the other ranks with `sync.from_rank_0`.
"""

import os
import pickle
import random
import re
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from ddp_course.base.atomic_file import flush_folder_to_disk, flush_to_disk, replacing
from ddp_course.base.errors import InputError, type_and_text
from ddp_course.checkpoint.run_files import CHECKPOINTS, CHECKSUM, STATE, newest_first, step_of

LATEST = "latest"
BEST = "best"  # see `best_checkpoint`
CHUNK = 2**20  # bytes read at a time


def save(run_dir: Path, step: int, state: dict, keep: int = 0) -> Path:
    """Write `state` (tensors, numbers, strings, lists, dicts) as `run_dir/checkpoints/step_NNNNNN`.

    keep: the number of newest checkpoints that stay, besides the one that the file `best` names; 0 keeps all.
    Returns the checkpoint's path. A valid checkpoint of the same step is not written again. Raises InputError when the
    disk is full or the folder cannot be written; nothing half-written remains.
    """
    folder = run_dir / CHECKPOINTS
    final = folder / f"step_{step:06d}"
    if final.exists() and problem(final) is None:
        write_name(run_dir, LATEST, final)  # a kill may have come between rename and this
        return final
    temporary = folder / f".step_{step:06d}.{os.getpid()}.tmp"
    try:
        shutil.rmtree(temporary, ignore_errors=True)  # in a container, a killed job may have had the same pid
        temporary.mkdir(parents=True)
        with open(temporary / STATE, "wb") as file:
            writer = _CheckedWriter(file)
            with _no_checksums_inside():
                torch.save(state, writer)
            flush_to_disk(file)
        with open(temporary / CHECKSUM, "w") as file:
            file.write(f"{writer.checksum:08x}  {STATE}\n")
            flush_to_disk(file)
        shutil.rmtree(final, ignore_errors=True)  # only ever a damaged one: a valid one returned above
        os.rename(temporary, final)
        flush_folder_to_disk(folder)
        write_name(run_dir, LATEST, final)
        abandoned = folder.glob(".step_*.tmp")  # by saves that were killed
        superseded = newest_first(folder)[keep:] if keep > 0 else []
        best = read_name(run_dir, BEST)
        for old in (*abandoned, *superseded):
            if old != best:
                shutil.rmtree(old)
    except (OSError, RuntimeError) as error:  # torch's C++ writer reports a full disk as RuntimeError
        shutil.rmtree(temporary, ignore_errors=True)
        reason = error.strerror if isinstance(error, OSError) else writer.problem or str(error)
        raise InputError(f"cannot write checkpoint {final}: {reason}") from error
    return final


def load(checkpoint: Path, action: str = "resume from") -> dict:
    """Read a checkpoint onto the CPU. Raises InputError if it is missing, damaged, or no dict of tensors and numbers.

    action: what the error message says cannot be done with the checkpoint.
    """
    damage = problem(checkpoint)
    if damage:
        raise InputError(f"cannot {action} {checkpoint}: {damage}")
    try:
        state = torch.load(checkpoint / STATE, map_location="cpu", weights_only=True)
    except Exception as error:  # the checksum is right: another program wrote this, and torch can raise anything
        if isinstance(error, pickle.UnpicklingError):
            damage = "holds more than tensors, numbers, strings, lists and dicts"
        else:
            damage = "is no file of torch.save"
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"cannot {action} {checkpoint}: {STATE} {damage} ({reason[0]})") from None
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise InputError(
            f"cannot {action} {checkpoint}: expected a dict of named parts, found a {type(state).__name__}"
        )
    return state


@contextmanager
def content_errors(checkpoint: Path, script: str, action: str = "resume from") -> Iterator[None]:
    """Turn any exception of the block, which uses a checkpoint's contents, into an InputError.

    The contents may lack the structure that `script` gives them, and `load_state_dict` may then raise anything.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = type_and_text(error)
        raise InputError(f"cannot {action} {checkpoint}: its contents are not those of {script} ({reason})") from error


def description(state: dict) -> str:
    """A checkpoint in words, for a message: the script that it names, or else its keys."""
    config = state.get("config")
    script = config.get("script") if isinstance(config, dict) else None
    return f"one of {script}" if isinstance(script, str) else f"one with {', '.join(sorted(state)[:8]) or 'nothing'}"


def problem(checkpoint: Path) -> str | None:
    """Why `checkpoint` cannot be used, in a few words; None if it is whole. Reads `state.pt` in full."""
    if not os.path.isdir(checkpoint):
        return "there is no such checkpoint folder"
    name = CHECKSUM
    try:
        expected, _, named = (checkpoint / CHECKSUM).read_text(encoding="utf-8").partition("  ")
        if named.removesuffix("\n") != STATE:
            return f"{CHECKSUM} does not list {STATE}: it is truncated or damaged"
        name, file = STATE, checkpoint / STATE
        if f"{_checksum_of(file):08x}" != expected:
            return f"{STATE} ({file.stat().st_size} bytes) does not match its checksum: it is truncated or damaged"
    except FileNotFoundError:
        return f"{name} is missing"
    except UnicodeDecodeError:
        return f"{CHECKSUM} is not text: it is damaged"
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    return None


def _checksum_of(file: Path) -> int:
    checksum = 0
    with open(file, "rb") as opened:
        while data := opened.read(CHUNK):
            checksum = zlib.crc32(data, checksum)
    return checksum


def newest_valid(run_dir: Path) -> Path | None:
    """The newest whole checkpoint of a run; None if the run has none at all.

    Prints a line for each damaged one that is passed over. Raises InputError if there are checkpoints but none is
    whole: a fresh start would then overwrite the run silently.
    """
    steps = newest_first(run_dir / CHECKPOINTS)
    for path in steps:
        damage = problem(path)
        if damage is None:
            return path
        print(f"passing over {path}: {damage}", flush=True)
    if steps:
        raise InputError(f"none of the {len(steps)} checkpoints in {run_dir / CHECKPOINTS} is whole")
    return None


def write_name(run_dir: Path, title: str, checkpoint: Path) -> None:
    """Let the file `title` of a run, `latest` or `best`, name this one of its checkpoints.

    A file of other content is renamed first, and a line printed.
    """
    file = run_dir / title
    if read_name(run_dir, title) == checkpoint:
        return
    if os.path.lexists(file) and not re.fullmatch(rb"(step_\d+)?\s*", _content(file)):
        aside = free_name(file)
        file.rename(aside)
        print(f"{file} named no checkpoint: it is now {aside}", flush=True)
    with replacing(file, "wb") as opened:
        opened.write(checkpoint.name.encode() + b"\n")


def read_name(run_dir: Path, title: str) -> Path | None:
    """The checkpoint that the file `title` of a run names, even if that does not exist; None if it names none."""
    match = re.fullmatch(rb"(step_\d+)\n", _content(run_dir / title))
    return run_dir / CHECKPOINTS / match[1].decode() if match else None


def _content(file: Path) -> bytes:
    """The content of a file that may name a checkpoint; b"no name" for a missing or large file."""
    return file.read_bytes() if file.is_file() and file.stat().st_size < 100 else b"no name"


def free_name(path: Path) -> Path:
    """A path in the same folder that does not exist yet: set_aside_NAME, if necessary with a number."""
    aside = path.with_name(f"set_aside_{path.name}")
    number = 0
    while os.path.lexists(aside):
        number += 1
        aside = path.with_name(f"set_aside_{path.name}_{number}")
    return aside


def set_aside_later_than(run_dir: Path, step: int) -> None:
    """Rename the checkpoints after `step`: they do not belong to a run that resumes from `step`.

    Under their names they would be found as the newest, and counted among those to keep. Nothing is deleted.
    """
    for path in newest_first(run_dir / CHECKPOINTS):
        if step_of(path) > step:
            path.rename(free_name(path))


def random_state(device: torch.device) -> dict:
    """The states of this process's random-number generators."""
    version, internal, gauss = random.getstate()
    _, words, *rest = np.random.get_state()
    state = {
        "torch": torch.get_rng_state(),
        "python": [version, list(internal), gauss],
        "numpy": [torch.from_numpy(words.astype(np.int64)), *rest],
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(state: dict, device: torch.device) -> None:
    """Put this process's random-number generators back to what `random_state` returned."""
    torch.set_rng_state(state["torch"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    words, *rest = state["numpy"]
    np.random.set_state(("MT19937", words.numpy().astype(np.uint32), *rest))
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)


class _CheckedWriter:
    """Writes to a file and computes the checksum of what it writes, so that the file need not be read again."""

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
    """Keep torch.save from computing a CRC-32 of every tensor: that of the whole file is enough."""
    previous = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(previous)
