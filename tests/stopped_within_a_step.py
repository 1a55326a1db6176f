"""A trainer of which a rank gets SIGTERM in the middle of a step: TRAINER STEP ASK, and the trainer's own words."""

import collections
import contextlib
import importlib
import os
import signal
import sys
from unittest import mock

import torch.distributed as dist

from ddp_course.training import command_line, loop


@contextlib.contextmanager
def stopped_within(step: int, ask: int):
    """The last rank gets SIGTERM where the ranks ask each other for the `ask`-th time in `step`, counted from 0."""
    asks, counts = loop.TrainingLoop.abandons_step, collections.Counter()

    def signalled(self) -> bool:
        counts[self.step] += 1
        if counts[step] == ask and dist.get_rank() == dist.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return asks(self)

    with (
        mock.patch.object(loop, "LONGEST_SILENCE", 0),
        mock.patch.object(loop.TrainingLoop, "abandons_step", signalled),
    ):
        yield


if __name__ == "__main__":
    name, step, ask = sys.argv[1:4]
    del sys.argv[1:4]
    trainer = importlib.import_module(f"ddp_course.{name}")
    with stopped_within(int(step), int(ask)):
        command_line.run(trainer.train, trainer.PRESETS)
