"""One rank of a trainer in which a fault happens at a given moment; chaos.py starts it.

python tests/chaos_rank.py TRAINER FLAGS...      the environment variable CHAOS holds the fault as JSON
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
from collections.abc import Callable
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

CLOCK_SHIFT = 3600  # seconds that the clock is put forward or back
LARGEST_FILE = 500  # bytes, on a "disk" that is full


def inject(act: str, seconds: float, mark: str) -> None:
    """Write the file `mark`_RANK, then let the fault happen."""
    Path(f"{mark}_{os.environ['RANK']}").touch()
    if act == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif act == "kill launcher":
        os.kill(os.getppid(), signal.SIGKILL)
    elif act == "freeze":
        pid = os.getpid()  # one process sends both signals, so that the first stops this one and the second ends that
        subprocess.run(["sh", "-c", f"kill -STOP {pid}; sleep {seconds}; kill -CONT {pid}"])
    elif act == "fill the disk":
        resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
    elif act == "set the clock":
        now, shift = time.time, CLOCK_SHIFT if os.environ["RANK"] == "0" else -CLOCK_SHIFT
        time.time = lambda: now() + shift


def call_at(moment: str, number: int, action: Callable[[], None]) -> None:
    """Call `action` at the trainer's `number`-th step, fsync or loading, counted from 0; at "meeting", at once."""
    count = itertools.count()

    def counted(function):
        def call(*args, **kwargs):
            if next(count) == number:
                action()
            return function(*args, **kwargs)

        return call

    if moment == "meeting":
        action()
    elif moment == "training":
        register_optimizer_step_pre_hook(counted(lambda optimizer, args, kwargs: None))
    elif moment == "saving":
        os.fsync = counted(os.fsync)
    elif moment == "loading":
        torch.load = counted(torch.load)


if __name__ == "__main__":
    fault = json.loads(os.environ["CHAOS"])
    if int(os.environ["RANK"]) in fault["ranks"]:
        call_at(fault["moment"], fault["number"], lambda: inject(fault["act"], fault["seconds"], fault["mark"]))
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    runpy.run_path(sys.argv[0], run_name="__main__")
