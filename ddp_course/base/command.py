"""How a command begins: Ctrl-C is one line at any time, and a standard stream that is closed leads nowhere."""

import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

INTERRUPTED = 128 + signal.SIGINT  # what a shell makes of a process that the signal has ended


def begin_command() -> None:
    """Call this first, before torch is imported: that takes seconds, in which somebody may press Ctrl-C.

    A file that is opened later would get the number of a closed stream, and be written into by C++ libraries.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest number that is free: this one
            setattr(sys, name, open(descriptor, "r" if name == "stdin" else "w"))
    _when_interrupted(_leave)


def run_command(main: Callable[[], int | None]) -> NoReturn:
    """Exit with what `main` returns. Ctrl-C raises KeyboardInterrupt in it, so that it can end what it has started."""
    _when_interrupted(signal.default_int_handler)
    try:
        code = main()
    except KeyboardInterrupt:
        _leave()
    _when_interrupted(_leave)
    sys.exit(code)


def _when_interrupted(handler: Callable) -> None:
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _leave):  # not where a shell's & ignores it
        signal.signal(signal.SIGINT, handler)


def _leave(*_: object) -> NoReturn:
    """Say it on one rank and end at once: an exception might be caught, or half imported modules be left behind."""
    if os.environ.get("RANK", "0") in ("", "0"):
        sys.stderr.write("interrupted\n")
        sys.stderr.flush()
    os._exit(INTERRUPTED)
