"""Files of text: find them below a folder, check that they are text, read them in chunks without loss."""

import codecs
import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ddp_course.base.errors import InputError

CHUNK = 2 << 20  # bytes: a longer file is read in several chunks, so memory does not grow with the file
BLOCK = 1 << 20  # bytes read at a time while checking


@dataclass(frozen=True)
class TextFile:
    """A file that may hold text, with its size and modification time when the corpus was loaded."""

    path: Path
    size: int  # bytes
    changed: int  # nanoseconds


@contextlib.contextmanager
def input_errors(path: Path) -> Iterator[None]:
    """Turn an OSError about a file into an InputError of one sentence."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot read {error.filename or path}: {error.strerror or error}") from error


def text_file(path: Path) -> TextFile:
    """The TextFile at a path. Raises OSError."""
    status = path.stat()
    return TextFile(path, status.st_size, status.st_mtime_ns)


def readable_file(path: Path) -> TextFile:
    """The TextFile at a path, whose size is measured by reading if it is reported as 0, as in /proc. Raises OSError."""
    file = text_file(path)
    if file.size:
        return file
    with open(path, "rb") as stream:
        return replace(file, size=sum(map(len, iter(lambda: stream.read(BLOCK), b""))))


def files_below(
    root: Path, keep_folder: Callable[[Path], bool], keep_file: Callable[[Path], bool] = lambda path: True
) -> tuple[TextFile, ...]:
    """Find all files below a folder that are neither empty nor hidden, sorted by relative path.

    `keep_folder` and `keep_file` decide for a path whether it is included. Raises InputError if a folder or file cannot
    be read.
    """

    def fail(error: OSError) -> None:
        raise error  # os.walk silently skips an unreadable folder by default

    files = []
    with input_errors(root):
        for folder, subfolders, names in os.walk(root, onerror=fail):
            subfolders[:] = [
                name for name in subfolders if not name.startswith(".") and keep_folder(Path(folder, name))
            ]
            paths = [Path(folder, name) for name in names if not name.startswith(".")]
            files += [text_file(path) for path in paths if keep_file(path) and path.is_file()]
    files.sort(key=lambda file: file.path.relative_to(root).as_posix())
    return tuple(file for file in files if file.size)


def digest_of_text(path: Path, at_most: int | None = None) -> bytes | None:
    """A hash of the file's content, or None if it is not text: not UTF-8, or with a NUL byte.

    Reads 1 MB at a time, and stops when `at_most` bytes have been read. Raises InputError.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    digest, bytes_read = hashlib.sha256(), 0
    with input_errors(path), open(path, "rb") as file:
        while block := file.read(BLOCK):
            try:
                if "\0" in decoder.decode(block):
                    return None
            except UnicodeDecodeError:
                return None
            digest.update(block)
            bytes_read += len(block)
            if at_most is not None and bytes_read >= at_most:
                return digest.digest()
    ends_inside_character = bool(decoder.getstate()[0])
    return None if ends_inside_character else digest.digest()


def line_start_near(file: TextFile, share: float) -> int:
    """The byte at `share` of a file, moved to the start of a line, where the file is split in two.

    The line may start anywhere in the second half of the file, at most 1 MB away; if none does, the file is split
    between two characters. The first part has at least one byte.
    """
    target = max(1, int(file.size * share))
    low = max(file.size // 2 - 1, target - BLOCK, 0)  # first position of the newline that ends the first part
    high = min(file.size - 1, target + BLOCK)
    with input_errors(file.path), open(file.path, "rb") as stream:
        stream.seek(low)
        block = stream.read(max(high - low, 0))
        newline = block.find(b"\n", target - low)
        if newline < 0:
            newline = block.rfind(b"\n", 0, target - low)
        if newline >= 0:
            return low + newline + 1
        stream.seek(target)
        following = stream.read(3)  # a UTF-8 character has at most three bytes after its first
    return target + len(following) - len(following.lstrip(bytes(range(0x80, 0xC0))))


def read_chunks(file: TextFile, start: int, stop: int) -> Iterator[str]:
    """Yield the text of bytes start to stop, at most 2 MB at a time, cut at the end of a line if possible.

    Bytes are decoded here, not by open(), which would turn the line end CRLF into LF. Raises InputError.
    """
    with input_errors(file.path), open(file.path, "rb") as stream:
        while start < stop:
            stream.seek(start)
            block = stream.read(min(CHUNK, stop - start))
            if start + len(block) < stop:
                whole_characters = codecs.utf_8_decode(block, "strict", False)[1]
                block = block[: block.rfind(b"\n") + 1 or whole_characters]
            if not block:
                raise InputError(f"{file.path} became shorter while it was read: start again when nobody writes it")
            yield block.decode("utf-8")
            start += len(block)
