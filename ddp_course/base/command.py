"""How a command begins and ends: Ctrl-C is one line at any time, a closed standard stream leads nowhere, and output
that could not be written is no success."""

import errno
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from ddp_course.base.standard_output import StandardOutput

INTERRUPTED = 128 + signal.SIGINT  # what a shell makes of a process that the signal has ended
_closed: set[str] = set()  # the standard streams that this process was started without


def begin_command() -> None:
    """Call this first, before torch is imported: that takes seconds, in which somebody may press Ctrl-C.

    A file that is opened later would get the number of a closed stream, and be written into by C++ libraries.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest number that is free: this one
            _closed.add(name)
            setattr(sys, name, open(descriptor, "r" if name == "stdin" else "w"))
    _when_interrupted(_leave)


def run_command(main: Callable[[], int | None]) -> NoReturn:
    """Exit with what `main` returns, or with 74 if what it printed could not be written; `| head` may leave.

    Ctrl-C raises KeyboardInterrupt in `main`, so that it can end what it has started.
    """
    if sys.stdout is None or "stdout" in _closed:  # a print has to fail, as on any closed file
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    sys.stdout = output = StandardOutput(sys.stdout)
    catch_interrupts()
    try:
        code = main()
    except KeyboardInterrupt:
        _leave()
    except SystemExit as leaving:  # of argparse, which may have printed --help
        code = leaving.code
    _when_interrupted(_leave)
    output.flush()
    if output.error and output.error.errno != errno.EPIPE:
        print(f"error: cannot write to the standard output: {output.problem}", file=sys.stderr)
        code = os.EX_IOERR
    sys.exit(code)


def catch_interrupts() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, after `begin_command`."""
    _when_interrupted(signal.default_int_handler)


def _when_interrupted(handler: Callable) -> None:
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _leave):  # not where a shell's & ignores it
        signal.signal(signal.SIGINT, handler)


def _leave(*_: object) -> NoReturn:
    """Say it on one rank and end at once: an exception might be caught, or half imported modules be left behind."""
    if os.environ.get("RANK", "0") in ("", "0"):
        sys.stderr.write("interrupted\n")
        sys.stderr.flush()
    os._exit(INTERRUPTED)
