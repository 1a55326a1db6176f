"""JSON that somebody else wrote, or that was damaged: each way in which it can be wrong is one sentence."""

import json
import os
from collections.abc import Callable
from pathlib import Path

from ddp_course.base.errors import InputError

LARGEST = 256 << 20  # bytes of a file; read as Python objects, they take about ten times as much


def parse(text: bytes, object_pairs_hook: Callable | None = None) -> object:
    """The value that `text` stands for. Raises ValueError with what is wrong, to be said of a line or a file."""
    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=object_pairs_hook)
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except RecursionError:
        raise ValueError("its JSON is nested too deeply to be read") from None
    except ValueError as error:
        shown = text[:40].decode("utf-8", errors="replace").strip()
        raise ValueError(f"expected a JSON object, found {shown!r} ({error})") from None


def read_object(path: str | os.PathLike, object_pairs_hook: Callable | None = None) -> dict:
    """The JSON object in a file. Raises InputError for whatever else is there, or if the file cannot be read."""
    try:
        with open(path, "rb") as file:
            # `read` takes memory for all that it is allowed to read. 0 bytes: a pipe or a device.
            size = os.fstat(file.fileno()).st_size or LARGEST
            text = file.read(min(size, LARGEST) + 1)
        if len(text) > LARGEST:
            raise InputError(f"cannot read {path}: it has more than {LARGEST >> 20} MB, too many for a file of JSON")
        parsed = parse(text, object_pairs_hook)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:  # of `parse`, or of a path with a NUL
        raise InputError(f"cannot read {Path(path)!s}: {error}") from None
    if not isinstance(parsed, dict):
        raise InputError(f"cannot read {path}: expected a JSON object, found {type(parsed).__name__}")
    return parsed
