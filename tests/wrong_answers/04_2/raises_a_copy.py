# mistake: makes a new exception of the text of the old one
# state: wrong
# check: the crash comes out
# message: it is not the one that train had raised

import time
from datetime import timedelta

import torch
import torch.distributed as dist


def hides_a_crash(run, timeout_seconds) -> bool:
    """On every rank: True on the rank that crashes if its exception stays in `run` for half the timeout or longer."""
    raised_at = None

    def train(rank):
        nonlocal raised_at
        if rank == dist.get_world_size() - 1:
            raised_at = time.monotonic()
            raise ValueError("on purpose")
        dist.all_reduce(torch.ones(1))  # as in a training step: the others wait for the one that is gone

    came_out = False
    try:
        run(train, timeout_seconds)
    except Exception:
        came_out = True
    if raised_at is None:
        return False  # this rank only lost contact
    return not came_out or time.monotonic() - raised_at > timeout_seconds / 2


def run(train, timeout_seconds) -> None:
    """Join the process group, call train(rank), leave the group. A crash comes out at once."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_seconds))
    crash = None
    try:
        train(dist.get_rank())
        dist.barrier()  # only where all went well
    except Exception as error:
        crash = type(error)(str(error))
    dist.destroy_process_group()
    if crash:
        raise crash
