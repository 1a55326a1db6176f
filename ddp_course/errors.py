"""The one exception that means "what you asked for cannot be done", as opposed to a bug in the code."""


class InputError(Exception):
    """Bad input: the message is one sentence with what was wrong, what was found and what would be right.

    A launchable script prints the message from one rank, without a traceback, and exits non-zero.
    Every other exception is a bug or a fault of the machine and keeps its traceback.
    """
