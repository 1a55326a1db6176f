"""Read JSON that may be damaged, or not be JSON at all: each fault becomes an error of one sentence."""

import json
import os
from collections.abc import Callable

from ddp_course.base.errors import InputError

MAX_BYTES = 256 << 20  # of a file: its Python objects take about ten times as much memory


def parse(text: bytes, object_pairs_hook: Callable | None = None) -> object:
    """The value of the JSON in `text`. Raises ValueError, whose text can follow the name of a file or a line."""
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
    """The JSON object in a file. Raises InputError if it holds anything else, or cannot be read."""
    try:
        with open(path, "rb") as file:
            # `read` allocates as many bytes as it is asked for. A pipe or a device has the size 0.
            size = os.fstat(file.fileno()).st_size or MAX_BYTES
            text = file.read(min(size, MAX_BYTES) + 1)
        if len(text) > MAX_BYTES:
            raise InputError(f"cannot read {path}: it has more than {MAX_BYTES >> 20} MB, too many for a file of JSON")
        parsed = parse(text, object_pairs_hook)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:  # of `parse`, or of a path with a NUL
        raise InputError(f"cannot read {path}: {error}") from None
    if not isinstance(parsed, dict):
        raise InputError(f"cannot read {path}: expected a JSON object, found {type(parsed).__name__}")
    return parsed
