"""Starts ranks from a notebook cell, shows what they print, and names the first failure."""

from ddp_course.launcher.launch import Run, RunFailed, RunStopped, RunTimedOut, torchrun
from ddp_course.launcher.nodes import Nodes

__all__ = ["Nodes", "Run", "RunFailed", "RunStopped", "RunTimedOut", "torchrun"]
