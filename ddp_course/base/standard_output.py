"""A standard output on which print never fails, though the disk of a log is full or `| head` has ended.

Otherwise the first print that fails would end rank 0 with a traceback in mid-step and leave its peers in a collective.
Here it is kept in `error`: `StopRequest` makes all ranks save and stop after the same step, and `command_line.run`
prints why.
"""

import os
from typing import TextIO


class StandardOutput:
    """Wraps a stream: no write or flush raises OSError. `error` is the first one that occurred, or None."""

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
        """The text of `error`, or "" if there was none."""
        return (self.error.strerror or str(self.error)) if self.error else ""

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def _give_up(self, error: OSError) -> None:
        self.error = error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())  # Python flushes the rest of the buffer there at exit
        os.close(nowhere)
