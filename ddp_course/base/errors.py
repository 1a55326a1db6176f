"""The one exception that means "what you asked for cannot be done", as opposed to a bug in the code."""

import re
from collections.abc import Iterator
from contextlib import contextmanager


class InputError(Exception):
    """Bad input: the message is one sentence with what was wrong, what was found and what would be right.

    A launchable script prints the message from one rank, without a traceback, and exits non-zero.
    Every other exception is a bug or a fault of the machine and keeps its traceback.
    """


def in_one_line(error: Exception | str) -> str:
    """The text of an error on one line: words of more than 300 characters are cut, and control characters escaped,
    because a file's name may contain a line break."""
    text = re.sub(r"(\S{300})\S+", r"\1...", str(error))
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def type_and_text(error: Exception) -> str:
    """The type and the text of an error, on one line of at most 200 characters."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


@contextmanager
def write_errors(target: object) -> Iterator[None]:
    """Turn an error of the file system in the block into an InputError: "cannot write", `target` and the reason."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise InputError(f"cannot write {target}: {getattr(error, 'strerror', None) or error}") from None
