"""The one exception that means "what you asked for cannot be done", as opposed to a bug in the code."""

import re


class InputError(Exception):
    """Bad input: the message is one sentence with what was wrong, what was found and what would be right.

    A launchable script prints the message from one rank, without a traceback, and exits non-zero.
    Every other exception is a bug or a fault of the machine and keeps its traceback.
    """


def in_one_line(error: Exception | str) -> str:
    """What an error says, with a line break or another control character shown as in a program: a file may have one
    in its name. Of a word that is longer than any path most is left out."""
    text = re.sub(r"(\S{300})\S+", r"\1...", str(error))
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
