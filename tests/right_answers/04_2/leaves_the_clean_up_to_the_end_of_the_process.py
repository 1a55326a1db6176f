# route: no clean-up after a crash; the detector's other ranks wait in a recv

import time
from datetime import timedelta

import torch
import torch.distributed as dist


def hides_a_crash(run, timeout_seconds):
    times = {}

    def train(rank):
        if rank == 0:
            times["raised"] = time.perf_counter()
            raise KeyError("gone")
        dist.recv(torch.empty(1), src=0)

    try:
        run(train, timeout_seconds)
    except KeyError:
        times["seen"] = time.perf_counter()
    except Exception as error:
        print(type(error))
    late = times.get("seen", float("inf")) - times.get("raised", float("inf"))
    return "raised" in times and not late < 0.5 * timeout_seconds


def run(train, timeout_seconds):
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_seconds))
    train(dist.get_rank())
    dist.barrier()
    dist.destroy_process_group()
