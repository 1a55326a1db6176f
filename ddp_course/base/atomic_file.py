"""Atomic file replacement: a reader finds the old content or the new, even if the writing process is killed."""

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def replacing(path: Path, mode: str = "w") -> Iterator[IO]:
    """Yields an open file whose content becomes `path` when the block ends, and is dropped when it raises.

    `mode` is "w" (UTF-8) or "wb". Afterwards the content and its name are on the disk. Raises OSError if the disk is
    full or the folder cannot be written.
    """
    # A name of its own for each writer: two processes, also in two containers with equal pids, may write at once.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, mode, **({} if "b" in mode else {"encoding": "utf-8", "newline": "\n"})) as file:
            yield file
            flush_to_disk(file)
        os.replace(temporary, path)
        flush_folder_to_disk(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def is_left_by_a_kill(name: str) -> bool:
    """Whether `name` is that of a temporary file of `replacing`, which stays only if the writing process is killed."""
    return re.fullmatch(r"\..+\.[0-9a-f]{32}\.tmp", name) is not None


def flush_to_disk(file: IO) -> None:
    """Make the bytes written to `file` survive a power cut."""
    file.flush()
    os.fsync(file.fileno())


def flush_folder_to_disk(folder: Path) -> None:
    """Make new and changed names in `folder` survive a power cut; `flush_to_disk` saves only the bytes of a file."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
