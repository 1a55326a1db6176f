"""Inside a rank, for 16.1: run the learner's batch script as a job of slurm_play.py."""

import tempfile
from pathlib import Path

from .slurm_play import play


def drive(batch_script, ends):
    """The outcome of `play`, or {"returned": ...} if the answer returned no text."""
    script = batch_script()
    if not isinstance(script, str):
        return {"returned": repr(script)[:200]}
    return play(script, Path(tempfile.mkdtemp()) / "play", ends)
