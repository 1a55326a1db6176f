"""Starts ranks from a notebook cell, shows what they print, and names the first failure."""

from ddp_course.launcher.launch import Run, RunFailed, RunStopped, RunTimedOut, torchrun

__all__ = ["Run", "RunFailed", "RunStopped", "RunTimedOut", "torchrun"]
