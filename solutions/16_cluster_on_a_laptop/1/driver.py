"""Inside a rank, for 16.1: the learner's batch script as a job of a Slurm that is played."""

import tempfile
from pathlib import Path

from .slurm_play import play


def drive(batch_script, ends):
    script = batch_script()
    if not isinstance(script, str):
        return {"returned": repr(script)[:200]}
    return play(script, Path(tempfile.mkdtemp()) / "play", ends)
