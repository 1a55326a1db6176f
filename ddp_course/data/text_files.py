"""Files of text: find them below a folder, check that they are text, read them in pieces without loss."""

import codecs
import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ddp_course.base.errors import InputError

PIECE = 2 << 20  # bytes: a longer file is read in several pieces, so memory does not grow with the file
BLOCK = 1 << 20  # bytes read at a time while checking


@dataclass(frozen=True)
class TextFile:
    """A file that may hold text, as it was when it was found."""

    path: Path
    size: int  # bytes
    changed: int  # modification time, nanoseconds


@contextlib.contextmanager
def input_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system reports about a file into an InputError of one sentence."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot read {error.filename or path}: {error.strerror or error}") from error


def look_at(path: Path) -> TextFile:
    """Size and time of a file. Raises OSError."""
    status = path.stat()
    return TextFile(path, status.st_size, status.st_mtime_ns)


def look_inside(path: Path) -> TextFile:
    """The same, by what can be read where the size is given as 0: files of /proc say 0. Raises OSError."""
    found = look_at(path)
    if found.size:
        return found
    with open(path, "rb") as file:
        return replace(found, size=sum(map(len, iter(lambda: file.read(BLOCK), b""))))


def files_below(
    root: Path, keep_file: Callable[[Path], bool] = bool, keep_folder: Callable[[Path], bool] = bool
) -> tuple[TextFile, ...]:
    """All files below a folder that are neither empty nor hidden, sorted by relative path.

    `keep_file` and `keep_folder` see a path and say whether it belongs. Raises InputError if anything is
    unreadable.
    """

    def fail(error: OSError) -> None:
        raise error  # os.walk would leave an unreadable folder out without a word

    found = []
    with input_errors(root):
        for folder, subfolders, names in os.walk(root, onerror=fail):
            subfolders[:] = [one for one in subfolders if not one.startswith(".") and keep_folder(Path(folder, one))]
            paths = [Path(folder, name) for name in names if not name.startswith(".")]
            found += [look_at(path) for path in paths if keep_file(path) and path.is_file()]
    found.sort(key=lambda file: file.path.relative_to(root).as_posix())
    return tuple(file for file in found if file.size)


def digest_of_text(path: Path, at_most: int | None = None) -> bytes | None:
    """A hash of the file's content, or None if it is not text: not UTF-8, or with a NUL byte.

    Reads 1 MB at a time, and stops after the first `at_most` bytes or little more. Raises InputError.
    """
    decoder, digest, seen = codecs.getincrementaldecoder("utf-8")(), hashlib.sha256(), 0
    with input_errors(path), open(path, "rb") as file:
        while block := file.read(BLOCK):
            try:
                if "\0" in decoder.decode(block):
                    return None
            except UnicodeDecodeError:
                return None
            digest.update(block)
            seen += len(block)
            if at_most is not None and seen >= at_most:
                return digest.digest()
    return None if decoder.getstate()[0] else digest.digest()  # bytes are left over: cut inside a character


def line_start_near(file: TextFile, share: float) -> int:
    """The byte at which the part of a file after `share` of it begins, moved to the start of a line.

    The line may start anywhere between the half and the end of the file, at most 1 MB away; if none does, the
    part begins at a character. At least the first byte lies before it.
    """
    wanted = max(1, int(file.size * share))
    low = max(file.size // 2 - 1, wanted - BLOCK, 0)  # of the newline before that line
    high = min(file.size - 1, wanted + BLOCK)
    with input_errors(file.path), open(file.path, "rb") as stream:
        stream.seek(low)
        block = stream.read(max(high - low, 0))
        newline = block.find(b"\n", wanted - low)
        if newline < 0:
            newline = block.rfind(b"\n", 0, wanted - low)
        if newline >= 0:
            return low + newline + 1
        stream.seek(wanted)
        following = stream.read(3)  # a UTF-8 character has at most three bytes after its first
    return wanted + len(following) - len(following.lstrip(bytes(range(0x80, 0xC0))))


def pieces(file: TextFile, start: int, stop: int) -> Iterator[str]:
    """The text of bytes start to stop, at most 2 MB at a time, cut after a line where there is one.

    Bytes are decoded here, not by open(), which would turn the line end CRLF into LF. Raises InputError.
    """
    with input_errors(file.path), open(file.path, "rb") as stream:
        while start < stop:
            stream.seek(start)
            block = stream.read(min(PIECE, stop - start))
            if start + len(block) < stop:
                whole_characters = codecs.utf_8_decode(block, "strict", False)[1]
                block = block[: block.rfind(b"\n") + 1 or whole_characters]
            if not block:
                raise InputError(f"{file.path} became shorter while it was read: start again when it rests")
            yield block.decode("utf-8")
            start += len(block)
