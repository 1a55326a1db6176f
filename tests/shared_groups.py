"""One group for each set of ranks: with a group per axis of each mesh a rank has a hundred, whose threads all poll.

As a script: ladder_ddp.py, with its flags.
"""

import contextlib
import functools
from unittest import mock

import torch.distributed as dist
import torch.distributed.device_mesh as device_mesh

from ddp_course.ladder_ddp import LadderConfig, climb
from ddp_course.training.command_line import run
from ddp_course.training.process import prepare_process


@functools.cache
def _group_of(ranks: tuple[int, ...]) -> dist.ProcessGroup:
    return dist.new_group(list(ranks))


def shared_groups() -> contextlib.AbstractContextManager:
    """Device meshes that are made meanwhile have the same groups where they have the same ranks."""
    return mock.patch.object(device_mesh, "new_group", lambda ranks, **options: _group_of(tuple(ranks)))


if __name__ == "__main__":
    prepare_process()
    with shared_groups():
        run(climb, {"ladder": LadderConfig()})
