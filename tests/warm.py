"""Runs a script on processes that are forked from one in which torch is loaded, instead of starting each anew.

A process computes for two to three seconds until torch and what an optimizer needs of it are there, and so does
torchrun itself. Most tests are about what comes after that. Here each rank is a process of its own as ever, with the
environment, the signals and the exit code of a job that was started by hand. What torchrun adds is left to the tests
of the launcher and of faults, and to every notebook.
"""

import json
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import torch.distributed as dist

from ddp_course.lab.launch import Run

# Forking is not safe where system libraries start threads of their own; there each rank loads torch anew.
HOW = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
if sys.platform == "linux":
    HOW.set_forkserver_preload(["torch.distributed.nn", "torch._dynamo", "ddp_course.minigpt_ddp"])
# Those of a launch, in which a test may itself be running.
OF_A_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def alone(script: str | Path, *args: object, timeout: float = 120) -> subprocess.CompletedProcess:
    """Runs `script` with `args` as one process, without a launcher. Raises AssertionError after `timeout` seconds."""
    [done] = _run(script, args, [{}], timeout)
    return done


def ranks(script: str | Path, *args: object, nproc: int, timeout: float = 120) -> Run:
    """Runs `script` with `args` as the ranks 0 to nproc - 1 of a job of this machine.

    Raises AssertionError with what was printed if a rank does not end with exit code 0, or not in `timeout` seconds:
    nobody ends the others when one has failed. In the Run's `lines`, stderr comes after stdout.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # so that no port has to be guessed
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    job |= {"WORLD_SIZE": str(nproc), "LOCAL_WORLD_SIZE": str(nproc)}
    start = time.monotonic()
    done = _run(script, args, [job | {"RANK": str(n), "LOCAL_RANK": str(n)} for n in range(nproc)], timeout)
    run = Run(command=f"{script} {args}", lines={}, results={}, exit_code=0, seconds=time.monotonic() - start)
    for rank, one in enumerate(done):
        run.exit_codes[rank], run.lines[rank], run.results[rank] = one.returncode, [], {}
        for line in one.stdout.splitlines():
            if line.startswith("{") and line.endswith("}"):  # a result, as in lab.launch
                run.results[rank] |= json.loads(line)
            else:
                run.lines[rank].append(line)
        run.lines[rank] += one.stderr.splitlines()
    assert not any(run.exit_codes.values()), f"{run.exit_codes}: {run.lines}"
    return run


def _run(script, args, environments: list[Mapping[str, str]], timeout) -> list[subprocess.CompletedProcess]:
    """One process for each of `environments`, which are added to the one of this process."""
    shared = {name: value for name, value in os.environ.items() if name not in OF_A_RANK} | {"OMP_NUM_THREADS": "1"}
    command, end = [str(script), *map(str, args)], time.monotonic() + timeout
    with tempfile.TemporaryDirectory(prefix="warm_") as folder:
        outputs = [(Path(folder) / f"{n}.stdout", Path(folder) / f"{n}.stderr") for n in range(len(environments))]
        processes = [
            HOW.Process(target=_be, args=(command, shared | own, os.getcwd(), output))
            for own, output in zip(environments, outputs, strict=True)
        ]
        try:
            for process in processes:
                process.start()
            for process in processes:
                process.join(max(0.0, end - time.monotonic()))
            late = [rank for rank, process in enumerate(processes) if process.exitcode is None]
        finally:
            for process in processes:
                if process.pid:
                    process.kill()
                    process.join()
        done = [
            subprocess.CompletedProcess(command, process.exitcode, *(path.read_text() for path in output))
            for process, output in zip(processes, outputs, strict=True)
        ]
    assert not late, f"ranks {late} had not ended after {timeout} s: {done}"
    return done


def _be(command, environment, folder, output):
    """What python does with a script, in this process, where torch is loaded."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, path in enumerate(output, start=1):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND), number)
    sys.argv = command
    sys.path.insert(0, str(Path(command[0]).parent.resolve()))
    runpy.run_path(command[0], run_name="__main__")
