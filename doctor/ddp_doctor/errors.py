"""The one exception that means "what you asked for cannot be done", as opposed to a bug in the code."""


class InputError(Exception):
    """Bad input: the message is one sentence with what was wrong, what was found and what would be right.

    The command line prints the message without a traceback, and exits with code 2.
    Every other exception is a bug or a fault of the machine and keeps its traceback.
    """


def in_one_line(error: Exception | str) -> str:
    """The text of an error, with unprintable characters escaped: the name of a file may have a line break."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in str(error))
