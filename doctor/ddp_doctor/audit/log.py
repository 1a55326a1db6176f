"""The file of one rank's events, where in the script each happened, and how a function is watched."""

import functools
import json
import os
import sys
import sysconfig
import threading
from traceback import walk_stack

DOCTOR = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # the doctor's own files, which no finding names
LIBRARIES = tuple(
    {os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
MAX_EVENTS = 3000  # of a kind, unless the caller has another limit
MAX_STEPS = 40  # of each optimizer are recorded; here and not in training.py, which needs torch: a check imports it


class Log:
    """Appends events to PID.audit.

    snapshot, replicas, is_gradient, works, fetching   set by the watchers of the other modules
    """

    def __init__(self, folder):
        self.pid = os.getpid()
        self.path = os.path.join(folder, str(self.pid))
        self.file = os.open(f"{self.path}.audit", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.counts, self.thread = {}, threading.local()
        self.event("start", rank=int(os.environ["RANK"]))

    def event(self, kind, limit=MAX_EVENTS, in_forks=False, **facts):
        """Writes one event; those of a kind above `limit` are only counted. in_forks: also in forked processes."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if self.counts[kind] <= limit and (in_forks or os.getpid() == self.pid):
            os.write(self.file, (json.dumps({"event": kind, **facts}) + "\n").encode())

    def end(self):
        self.quietly(self.snapshot.end)

    def is_paused(self):
        """Whether calls are not recorded now: the audit itself makes them, or a forked process."""
        return getattr(self.thread, "recording", False) or os.getpid() != self.pid

    def quietly(self, recorder, *args):
        """Returns recorder(*args), whose own calls are not recorded. An error in it is an event, and None returned."""
        if self.is_paused():
            return None
        self.thread.recording = True
        try:
            return recorder(*args)
        except Exception as error:
            self.event("audit failed", limit=20, text=f"{getattr(recorder, '__qualname__', recorder)}: {error!r}")
            return None
        finally:
            self.thread.recording = False

    def watched(self, function, before):
        """A wrapper of `function` that first calls before(args, kwargs).

        `before` returns None, or a function that is called with the result afterwards.
        """

        @functools.wraps(function)
        def watched(*args, **kwargs):
            if self.is_paused():
                return function(*args, **kwargs)
            after = self.quietly(before, args, kwargs)
            result = function(*args, **kwargs)
            if after is not None:
                self.quietly(after, result)
            return result

        return watched


@functools.cache
def kind_of(file):
    """Whose code a file holds: "own" (the user's), "torch", "package" (installed), "library" (Python's) or "audit"."""
    if file.startswith("<") or not file.endswith((".py", ".ipynb")):  # torch's stacks name C++ sources, too
        return "library"
    path = os.path.realpath(file)
    if path.startswith(DOCTOR + os.sep):
        return "audit"
    if "-packages/" in path:
        return "torch" if "-packages/torch/" in path else "package"
    return "library" if path.startswith(LIBRARIES) else "own"


def where():
    """[[file, line, function], ...] of the user's own code: four frames at most, the innermost first."""
    frame, frames = sys._getframe(1), []
    while frame is not None and len(frames) < 4:
        name = frame.f_code.co_filename
        if kind_of(name) == "own":
            frames.append([os.path.abspath(name), frame.f_lineno, frame.f_code.co_name])
        frame = frame.f_back
    return frames


def caller(*skipped):
    """Whose code called the watched function: "own", "torch", "package" or "library".

    Frames of the audit are skipped, and those of the installed files or folders `skipped`, such as "torch/".
    """
    files = (frame.f_code.co_filename for frame, _ in walk_stack(sys._getframe(1)))
    kinds = (kind_of(file) for file in files if not any(f"-packages/{path}" in file for path in skipped))
    return next((kind for kind in kinds if kind != "audit"), "own")
