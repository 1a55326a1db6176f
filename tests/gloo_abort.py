"""gloo of torch 2.13 can abort a process that has finished: one more try, for that and for nothing else."""

import warnings
from collections.abc import Callable
from typing import TypeVar

from ddp_course.lab.notebook_run import NotebookFailed

T = TypeVar("T")
# What C++ says when the interpreter ends while a thread of gloo waits for it. `process_group.stop` guards the course's
# own programs; the short scripts of a lesson end with a plain destroy_process_group(), as everybody's do.
ABORT = "terminate called without an active exception"


def once_more_if_gloo_aborts(run: Callable[[], T]) -> T:
    """Call `run`; if a notebook failed because of this abort, say so and call it once more."""
    try:
        return run()
    except NotebookFailed as failure:
        if ABORT not in str(failure):
            raise
        warnings.warn(f"gloo aborted a finished script, trying once more:\n{failure}", stacklevel=2)
        return run()
