"""The file of one rank's events, where in the script each happened, and how a function is watched."""

import functools
import json
import os
import sys
import sysconfig
import threading

DOCTOR = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # its own files are in no finding
LIBRARIES = tuple(
    {os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
MOST = 3000  # events of a kind, unless said otherwise
UPDATES = 40  # of each optimizer are looked at whole; a check without torch has to know, too


class Log:
    """Appends events to PID.audit. Nothing is written by a process that this one has forked."""

    def __init__(self, folder):
        self.pid = os.getpid()
        self.path = os.path.join(folder, str(self.pid))
        self.kept = None  # see kept.py
        self.file = os.open(f"{self.path}.audit", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.counts, self.inside = {}, threading.local()
        self.event("start", rank=int(os.environ["RANK"]))

    def event(self, kind, most=MOST, anywhere=False, **facts):
        """Writes one event; those above `most` of a kind are only counted. `anywhere`: from forked processes, too."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if self.counts[kind] <= most and (anywhere or os.getpid() == self.pid):
            os.write(self.file, (json.dumps({"event": kind, **facts}) + "\n").encode())

    def end(self):
        self.quietly(self.kept.end)

    def off(self):
        """Is this a moment at which nothing is to be seen: in what the audit itself calls, or in a forked process?"""
        return getattr(self.inside, "looking", False) or os.getpid() != self.pid

    def quietly(self, look, *args):
        """`look(*args)`; the script must not notice if that fails, and what it calls is not watched."""
        if self.off():
            return None
        self.inside.looking = True
        try:
            return look(*args)
        except Exception as error:
            self.event("audit failed", most=20, text=f"{getattr(look, '__qualname__', look)}: {error!r}")
            return None
        finally:
            self.inside.looking = False

    def watched(self, function, look):
        """`function`, with `look(args, kwargs)` before it; what that returns is called with the result, if anything."""

        @functools.wraps(function)
        def watched(*args, **kwargs):
            if self.off():
                return function(*args, **kwargs)
            then = self.quietly(look, args, kwargs)
            result = function(*args, **kwargs)
            if then is not None:
                self.quietly(then, result)
            return result

        return watched


@functools.cache
def kind_of(file):
    """Whose code a file holds: "own" (the user's), "torch", "package" (installed), "library" (Python's) or "audit"."""
    if file.startswith("<") or not file.endswith((".py", ".ipynb")):  # torch's C++ part names sources that are not here
        return "library"
    path = os.path.realpath(file)
    if path.startswith(DOCTOR + os.sep):
        return "audit"
    if "-packages/" in path:
        return "torch" if "-packages/torch/" in path else "package"
    return "library" if path.startswith(LIBRARIES) else "own"


def where(most=4):
    """[[file, line, function], ...] of the user's own code, from the innermost frame out."""
    frame, frames = sys._getframe(1), []
    while frame is not None and len(frames) < most:
        name = frame.f_code.co_filename
        if kind_of(name) == "own":
            frames.append([os.path.abspath(name), frame.f_lineno, frame.f_code.co_name])
        frame = frame.f_back
    return frames


def caller(skipped="torch/"):
    """Whose code called the watched function: "own", "torch", "package" or "library".

    It is the innermost frame outside of the audit, and of the installed files whose path begins with `skipped`.
    """
    frame = sys._getframe(1)
    while frame is not None and (
        kind_of(frame.f_code.co_filename) == "audit" or f"-packages/{skipped}" in frame.f_code.co_filename
    ):
        frame = frame.f_back
    return "own" if frame is None else kind_of(frame.f_code.co_filename)
