# route: a context manager that cleans up without a barrier

import contextlib
import datetime
import time

import torch
import torch.distributed as dist


@contextlib.contextmanager
def process_group(seconds):
    dist.init_process_group(backend="gloo", timeout=datetime.timedelta(seconds=seconds))
    try:
        yield dist.get_rank()
    except BaseException as error:
        print(f"rank {dist.get_rank()}: {error!r}", flush=True)
        raise
    finally:
        dist.destroy_process_group()


def run(train, timeout_seconds):
    with process_group(timeout_seconds) as rank:
        train(rank)


def hides_a_crash(run, timeout_seconds):
    start = end = None

    def train(rank):
        nonlocal start
        dist.barrier()
        if rank == 1:
            start = time.monotonic()
            raise AssertionError("boom")
        while True:
            dist.all_reduce(torch.zeros(1000))

    with contextlib.suppress(RuntimeError):
        try:
            run(train, timeout_seconds)
        except AssertionError:
            end = time.monotonic()
    if start is None:
        return False
    return end is None or end - start >= timeout_seconds / 2
