"""Processes as torchrun starts them, but forked from one in which torch is loaded: for the grader, and for tests.

Loading torch, with the modules that an optimizer needs, costs a new process two to three seconds of computation. Four
forked processes have it after a fifth of a second.
"""

import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import BaseContext
from pathlib import Path

import torch
import torch.distributed as dist

# Forking is not safe where system libraries start threads of their own; there each process loads torch anew.
FORKS = sys.platform == "linux"


def context(method: str) -> BaseContext:
    """The multiprocessing context of `method`, "fork" or "forkserver"; "spawn" where forking is not safe."""
    return multiprocessing.get_context(method if FORKS else "spawn")


def open_store() -> dist.TCPStore:
    """A key-value store on a free port, for the rendezvous of a job's ranks."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def rank_environment(rank: int, world: int, port: int, per_node: int | None = None) -> dict[str, str]:
    """The variables that torchrun gives to a rank of a job on this machine; `port` is that of the store.

    per_node: the ranks of each node but the last, of a job that behaves as if it ran on several; default: one node.
    """
    per_node = per_node or world
    node, local_rank = divmod(rank, per_node)
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(min(per_node, world - node * per_node)),
        "GROUP_RANK": str(node),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


def set_up_process(command: Sequence[str], environment: Mapping[str, str], folder: Path, output: Path):
    """Make this process look like one in which Python is about to run the script command[0] with arguments command[1:].

    Its working directory is `folder`; what it prints is appended to the files `output`.stdout and `output`.stderr.
    """
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for descriptor, ending in ((1, ".stdout"), (2, ".stderr")):
        os.dup2(os.open(f"{output}{ending}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    # After a fork, torch makes its thread pool anew where the number of threads is set first. torch for CUDA sets it in
    # several threads of autograd at once, and aborts then ("Invalid thread pool", pytorch/pytorch#178535).
    torch.set_num_threads(torch.get_num_threads())
    sys.argv = list(command)
    sys.path.insert(0, os.path.dirname(os.path.abspath(command[0])))


def run_script(path: str, **names: object):
    """Run a script as Python does; `names` are defined in its namespace."""
    runpy.run_path(path, init_globals=names, run_name="__main__")
