# mistake: reads the source instead of running it
# state: wrong
# check: the detector tells them apart
# message: given a barrier at the end of a good run, hides_a_crash returned True

import inspect
from datetime import timedelta

import torch.distributed as dist


def hides_a_crash(run, timeout_seconds):
    return "barrier" in inspect.getsource(run)


def run(train, timeout_seconds) -> None:
    """Join the process group, call train(rank), leave the group. A crash comes out at once."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_seconds))
    try:
        train(dist.get_rank())
        dist.barrier()  # only where all went well
    finally:
        dist.destroy_process_group()
