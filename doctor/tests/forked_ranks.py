"""Runs a script on ranks that are forked from a process in which torch is loaded, instead of starting each anew.

Torch and what an optimizer needs of it take two to three seconds to load. Each rank is a process of its own, with the
environment and the exit code that torchrun would give it.
"""

import faulthandler
import multiprocessing
import os
import runpy
import sys
import tempfile
import types
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch.distributed.nn", "torch._dynamo"])


@dataclass
class Ranks:
    """The exit codes of a job's ranks, None where a timeout ended it, and each rank's lines, stderr after stdout."""

    exit_codes: list[int | None]
    lines: list[list[str]]


def run_ranks(
    script: str | Path, *arguments: object, nproc: int, timeout: float = 300, may_fail: bool = False
) -> Ranks:
    """Runs the script on `nproc` ranks, for at most `timeout` seconds each, and waits for them.

    Raises AssertionError with what was printed if a rank does not end with exit code 0, unless `may_fail`.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    command = [str(script), *map(str, arguments)]
    with tempfile.TemporaryDirectory(prefix="forked_") as folder:
        processes = []
        for rank in range(nproc):
            variables = dict(os.environ) | {
                "OMP_NUM_THREADS": "1",
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(nproc),
                "LOCAL_WORLD_SIZE": str(nproc),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(store.port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "TORCHELASTIC_RESTART_COUNT": "0",
            }
            output = f"{folder}/{rank}"
            processes.append(FORKS.Process(target=_run_script, args=(command, variables, os.getcwd(), output)))
        try:
            # Without this, each rank would import the file that this process was started with, such as pytest's.
            with mock.patch.dict(sys.modules, {"__main__": types.ModuleType("__main__")}):
                for process in processes:
                    process.start()
            for process in processes:
                process.join(timeout)
            exit_codes = [process.exitcode for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.join()
        outputs = [[Path(f"{folder}/{rank}{ending}") for ending in ("", ".err")] for rank in range(nproc)]
        texts = ["".join(path.read_text() for path in paths if path.exists()) for paths in outputs]
    assert may_fail or exit_codes == [0] * nproc, f"{exit_codes}: {texts}"
    return Ranks(exit_codes, [text.splitlines() for text in texts])


def _run_script(command, variables, folder, output):
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    for descriptor, path in ((1, output), (2, f"{output}.err")):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    faulthandler.enable()
    torch.set_num_threads(int(variables["OMP_NUM_THREADS"]))  # torch was loaded without it
    multiprocessing.set_start_method(None, force=True)  # as in a process that Python has started by itself
    sys.argv = command
    sys.path.insert(0, os.path.dirname(os.path.abspath(command[0])))
    runpy.run_path(command[0], run_name="__main__")
