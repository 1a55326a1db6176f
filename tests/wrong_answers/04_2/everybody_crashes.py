# mistake: lets all ranks raise: they meet in the barrier, and nothing is late
# state: wrong
# check: the detector tells them apart
# message: given a barrier in `finally`, hides_a_crash returned False on both ranks

import time
from datetime import timedelta

import torch.distributed as dist


def hides_a_crash(run, timeout_seconds) -> bool:
    """On every rank: True on the rank that crashes if its exception stays in `run` for half the timeout or longer."""
    raised_at = None

    def train(rank):
        nonlocal raised_at
        raised_at = time.monotonic()
        raise ValueError("on purpose")

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
    try:
        train(dist.get_rank())
        dist.barrier()  # only where all went well
    finally:
        dist.destroy_process_group()
