"""A trainer whose last rank gets SIGTERM within a step.

python tests/stopped_within_a_step.py TRAINER STEP CALL FLAGS...
"""

import collections
import contextlib
import importlib
import os
import signal
import sys
from unittest.mock import patch

import torch.distributed as dist

from ddp_course.training import command_line, loop


@contextlib.contextmanager
def stopped_within(step: int, call: int):
    """The last rank gets SIGTERM at the `call`-th call of `abandons_step` in `step`, counted from 0."""
    abandons_step, counts = loop.TrainingLoop.abandons_step, collections.Counter()

    def signalled(self) -> bool:
        counts[self.step] += 1
        if counts[step] == call and dist.get_rank() == dist.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return abandons_step(self)

    with patch.object(loop, "LONGEST_SILENCE", 0), patch.object(loop.TrainingLoop, "abandons_step", signalled):
        yield


if __name__ == "__main__":
    name, step, call = sys.argv[1:4]
    del sys.argv[1:4]
    trainer = importlib.import_module(f"ddp_course.{name}")
    with stopped_within(int(step), int(call)):
        command_line.run(trainer.train, trainer.PRESETS)
