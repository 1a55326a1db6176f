"""One rank of a launchable that meets a fault at a named moment: what chaos.py starts.

python tests/chaos_rank.py LAUNCHABLE FLAGS...      the fault stands in the variable CHAOS, see there
"""

import itertools
import json
import os
import resource
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.distributed import checkpoint as dcp
from torch.optim.optimizer import register_optimizer_step_pre_hook

MUCH = 3600  # seconds that the clock is put forward or back
FULL = 500  # bytes to which a file can grow on a "disk" that is full


def strike(act: str, seconds: float, mark: str) -> None:
    """Let the fault happen, having noted that it did."""
    Path(f"{mark}_{os.environ['RANK']}").touch()
    if act == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif act == "kill launcher":
        os.kill(os.getppid(), signal.SIGKILL)
    elif act == "freeze":
        subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    elif act == "fill the disk":
        resource.setrlimit(resource.RLIMIT_FSIZE, (FULL, FULL))
    elif act == "set the clock":
        now, by = time.time, MUCH if os.environ["RANK"] == "0" else -MUCH
        time.time = lambda: now() + by


def at(moment: str, number: int, happen) -> None:
    """Call `happen` when the trainer comes to its `number`-th (from 0) step, fsync or loading."""
    count = itertools.count()

    def counted(function):
        def call(*args, **kwargs):
            if next(count) == number:
                happen()
            return function(*args, **kwargs)

        return call

    if moment == "meeting":
        happen()
    elif moment == "training":
        register_optimizer_step_pre_hook(counted(lambda optimizer, args, kwargs: None))
    elif moment == "saving":
        os.fsync = counted(os.fsync)
    elif moment == "loading":
        torch.load, dcp.load = counted(torch.load), counted(dcp.load)


if __name__ == "__main__":
    fault = json.loads(os.environ["CHAOS"])
    if int(os.environ["RANK"]) in fault["ranks"]:
        at(fault["moment"], fault["number"], lambda: strike(fault["act"], fault["seconds"], fault["mark"]))
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    runpy.run_path(sys.argv[0], run_name="__main__")
