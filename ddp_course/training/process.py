"""The settings of the whole process that a trainer changes: all of them here, in one call that each trainer makes."""

import atexit
import gc
import sys

from ddp_course.base.standard_output import StandardOutput


def prepare_process() -> None:
    """Prepare this process for a training run. Call it once, where the program starts, before `command_line.run`.

    `make bench ARGS="--only Preparation"` measures what the last one saves.
    """
    note_unwritable_output()
    collect_garbage_seldom()


def note_unwritable_output() -> None:
    """Let a print that nobody can read raise nothing: all ranks then save and stop after the same step."""
    sys.stdout = StandardOutput(sys.stdout)


def collect_garbage_seldom() -> None:
    """Let Python look for garbage seldom from here on, and not at the end of the process.

    An optimizer and DDP load much of torch: some hundred thousand objects that stay, and that each collection goes
    through again.
    """
    gc.set_threshold(50_000)  # new objects before the next collection; Python's own value is 700 or 2000
    atexit.register(_leave_what_is_left)


def _leave_what_is_left() -> None:
    """Let the objects that are left go with the process; but triton 3.9 prints a warning for each one of its own."""
    if "triton" not in sys.modules:
        gc.freeze()
