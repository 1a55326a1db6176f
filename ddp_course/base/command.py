"""How a command begins and ends.

Ctrl-C prints one line, without a traceback, and exits with 130. A standard stream that is closed is replaced by
/dev/null. If the output cannot be written, the exit code is 74.
"""

import errno
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from ddp_course.base.standard_output import StandardOutput

INTERRUPTED = 128 + signal.SIGINT  # the exit code that a shell reports for a process that SIGINT has ended
_closed_streams: set[str] = set()  # names of the standard streams that this process was started without


def begin_command() -> None:
    """Make Ctrl-C print one line and exit, and open /dev/null for each closed standard stream.

    Call this before torch is imported: the import takes seconds, in which a user may press Ctrl-C. Without /dev/null
    the next file to be opened would get the descriptor of the closed stream, and the output of C++ libraries.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free descriptor
            _closed_streams.add(name)
            setattr(sys, name, open(descriptor, "r" if name == "stdin" else "w"))
    _set_interrupt_handler(_exit_interrupted)


def run_command(main: Callable[[], int | None]) -> NoReturn:
    """Run `main` and exit with its return value, or with 74 if its output could not be written.

    A closed pipe, as of `| head`, is no error. Ctrl-C raises KeyboardInterrupt in `main`, so that it can end the
    processes that it has started.
    """
    if sys.stdout is None or "stdout" in _closed_streams:  # print must fail, as on any closed file
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    sys.stdout = output = StandardOutput(sys.stdout)
    catch_interrupts()
    try:
        code = main()
    except KeyboardInterrupt:
        _exit_interrupted()
    except SystemExit as error:  # of argparse, which may have printed --help
        code = error.code
    _set_interrupt_handler(_exit_interrupted)
    output.flush()
    if output.error and output.error.errno != errno.EPIPE:
        print(f"error: cannot write to the standard output: {output.problem}", file=sys.stderr)
        code = os.EX_IOERR
    sys.exit(code)


def catch_interrupts() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, after `begin_command`."""
    _set_interrupt_handler(signal.default_int_handler)


def _set_interrupt_handler(handler: Callable) -> None:
    # Not if SIGINT is ignored, as a shell does for `command &`.
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _exit_interrupted):
        signal.signal(signal.SIGINT, handler)


def _exit_interrupted(*_: object) -> NoReturn:
    """Print "interrupted" on rank 0 only, and exit at once.

    An exception might be caught, or leave a module half imported.
    """
    if os.environ.get("RANK", "0") in ("", "0"):
        sys.stderr.write("interrupted\n")
        sys.stderr.flush()
    os._exit(INTERRUPTED)
