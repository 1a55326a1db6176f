"""Processes as torchrun starts them, but forked from one in which torch is loaded: for the grader, and for tests.

A process computes for two to three seconds until torch and what an optimizer needs of it are there. Four that are
forked are up in a fifth of a second.
"""

import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import BaseContext
from pathlib import Path

import torch.distributed as dist

# Forking is not safe where system libraries start threads of their own; there each process loads torch anew.
FORKS = sys.platform == "linux"


def context(method: str) -> BaseContext:
    """How to start processes: by `method`, "fork" or "forkserver", where that is safe."""
    return multiprocessing.get_context(method if FORKS else "spawn")


def open_store() -> dist.TCPStore:
    """A key-value store on a free port, through which the ranks of a job meet."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def rank_environment(rank: int, world: int, port: int) -> dict[str, str]:
    """The variables that torchrun gives to a rank of a job on this machine; `port` is that of the store."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


def become(command: Sequence[str], environment: Mapping[str, str], folder: Path, output: Path):
    """Make this process look as one in which Python is about to run the script command[0] with the rest as arguments.

    It works in `folder`, and what it prints is appended to `output` with the endings .stdout and .stderr.
    """
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for descriptor, ending in ((1, ".stdout"), (2, ".stderr")):
        os.dup2(os.open(f"{output}{ending}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    sys.argv = list(command)
    sys.path.insert(0, os.path.dirname(os.path.abspath(command[0])))


def run_script(path: str, **names: object):
    """Run a script as Python does; `names` are defined in its namespace."""
    runpy.run_path(path, init_globals=names, run_name="__main__")
