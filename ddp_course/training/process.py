"""The settings of the whole process that a trainer changes: all of them here, in one call that each trainer makes."""

import atexit
import gc
import sys

from ddp_course.base.standard_output import StandardOutput


def prepare_process() -> None:
    """Prepare this process for a training run. Call it once, where the program starts, before `command_line.run`.

    `make bench ARGS="--only Preparation"` measures what `collect_garbage_seldom` saves.
    """
    note_unwritable_output()
    collect_garbage_seldom()


def note_unwritable_output() -> None:
    """Let a print to a closed or full output raise nothing: all ranks then save and stop after the same step."""
    sys.stdout = StandardOutput(sys.stdout)


def collect_garbage_seldom() -> None:
    """Let Python look for garbage seldom from here on, and not at the end of the process.

    An optimizer and DDP load much of torch: some hundred thousand objects that stay, and that each collection would
    visit again.
    """
    gc.set_threshold(50_000)  # new objects before the next collection; Python's own value is 700 or 2000
    atexit.register(_freeze_objects)


def _freeze_objects() -> None:
    """Let the collection at exit skip all objects; not with triton, which would print a warning for each of its own."""
    if "triton" not in sys.modules:
        gc.freeze()
