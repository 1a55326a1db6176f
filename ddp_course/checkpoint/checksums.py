"""Lists of checksums: which files make a checkpoint, and whether each still has the content that was written.

A line holds a CRC-32 and a path from the folder of the list. If a list names another list, the files of that one are
verified too, so a checkpoint can have files in other folders.
"""

import os
import zlib
from collections.abc import Callable
from pathlib import Path

from ddp_course.base.errors import InputError

CHUNK = 2**20  # bytes read at a time
SUFFIX = ".crc32"  # of a list


def line(checksum: int, name: str) -> str:
    """The line of a list for the file `name`."""
    return f"{checksum:08x}  {name}\n"


def of_file(path: Path) -> int:
    """The CRC-32 of a file. Raises OSError."""
    checksum = 0
    with open(path, "rb") as file:
        while data := file.read(CHUNK):
            checksum = zlib.crc32(data, checksum)
    return checksum


def problem(path: Path, last: str, elsewhere: bool = True) -> str | None:
    """Verify the files of the checksum list at `path`; returns the damage in a few words, or None.

    last: the file that its last line has to name, so that a truncated list is found; "" for any. elsewhere: whether to
    verify files in other folders.
    """
    named = None
    try:
        for entry in path.read_text(encoding="utf-8").splitlines():
            expected, _, named = entry.partition("  ")
            if not elsewhere and os.path.dirname(named):
                continue
            file = path.parent / named
            if not file.is_file():
                return f"{named} is missing, which {path.name} lists"
            if f"{of_file(file):08x}" != expected:
                return f"{named} ({file.stat().st_size} bytes) does not match its checksum: it is truncated or damaged"
            if named.endswith(SUFFIX) and (damage := problem(file, "", elsewhere=False)):
                return damage
    except FileNotFoundError:
        return f"{path.name} is missing, the list of checksums"
    except UnicodeDecodeError:
        return f"{path.name} is not text: it is damaged"
    except (OSError, ValueError) as error:
        return f"{named or path.name} cannot be read ({getattr(error, 'strerror', None) or error})"
    if last and named != last:
        return f"{path.name} does not list {last}: it is truncated or damaged"
    return None


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


def newest_whole(folder: Path, problem: Callable[[Path], str | None]) -> Path | None:
    """The folder step_N in `folder` with the highest step and without a `problem`; None if there are no such folders.

    Prints a line for each that is passed over. Raises InputError if there are some but none is whole.
    """
    steps = newest_first(folder)
    for path in steps:
        damage = problem(path)
        if damage is None:
            return path
        print(f"passing over {path}: {damage}", flush=True)
    if steps:
        raise InputError(f"none of the {len(steps)} checkpoints in {folder} is whole")
    return None
