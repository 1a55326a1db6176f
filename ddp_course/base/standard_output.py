"""Handles a failing standard output: `| head` has left, or the disk of a log is full.

The first print that fails would end rank 0 with a traceback in mid-step and leave its peers in a collective. Here it is
noted instead: `StopRequest` lets all ranks save and stop after the same step, and `command_line.run` says why.
"""

import os
from typing import TextIO


class StandardOutput:
    """Like the stream it stands for, but a write never raises OSError. `error` is the first that one met."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self.error: OSError | None = None
        if hasattr(stream, "reconfigure"):  # a model writes letters that not every terminal's encoding has
            stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        if self._stream is not None and not self.error:
            try:
                self._stream.write(text)
            except OSError as error:
                self._give_up(error)
        return len(text)

    def flush(self) -> None:
        if self._stream is not None and not self.error:
            try:
                self._stream.flush()
            except OSError as error:
                self._give_up(error)

    @property
    def problem(self) -> str:
        """A sentence's end about `error`, "" if there was none."""
        return (self.error.strerror or str(self.error)) if self.error else ""

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def _give_up(self, error: OSError) -> None:
        self.error = error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())  # what its buffer still holds goes there when Python ends
        os.close(nowhere)
