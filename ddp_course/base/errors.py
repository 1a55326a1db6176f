"""The one exception that means "what you asked for cannot be done", as opposed to a bug in the code."""

import re


class InputError(Exception):
    """Bad input: the message is one sentence with what was wrong, what was found and what would be right.

    A launchable script prints the message from one rank, without a traceback, and exits non-zero.
    Every other exception is a bug or a fault of the machine and keeps its traceback.
    """


def in_one_line(error: Exception | str) -> str:
    """The text of an error, with control characters escaped, because a file's name may have a line break, and words
    longer than any path cut."""
    text = re.sub(r"(\S{300})\S+", r"\1...", str(error))
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
