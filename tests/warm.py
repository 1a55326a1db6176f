"""Runs a script on processes that are forked from one in which torch is loaded, instead of starting a Python for each.

Importing torch, with the modules that an optimizer needs, costs a process two to three seconds of computation, and
torchrun the same once more. Most tests are about what comes after that. Each rank is still a process of its own, with
the environment, the signals and the exit code of a job that was started by hand. torchrun itself runs in the tests of
the launcher and of faults, and in every notebook.
"""

import faulthandler
import json
import multiprocessing.connection
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from ddp_course.launcher import Run, forked
from ddp_course.launcher.fair_clock import FairClock

SCRIPTS = "minigpt", "reward", "grpo", "puzzles", "parallel", "diloco", "experts", "finetune", "ladder"
LAUNCHABLES = [f"ddp_course.{name}_ddp" for name in SCRIPTS]
CONTEXT = forked.context("forkserver")
if forked.FORKS:
    CONTEXT.set_forkserver_preload(["torch.distributed.nn", "torch._dynamo", *LAUNCHABLES])
RANK_NAMES = forked.rank_environment(0, 1, 0)  # a test may itself be running in a launch


def single_process(script: str | Path, *args: object) -> subprocess.CompletedProcess:
    """Runs `script` with `args` as one process, without a launcher. Raises AssertionError after 20 minutes."""
    [done] = processes(script, args, [{}], timeout=1200)
    return done


def ranks(script: str | Path, *args: object, nproc: int, timeout: float = 1200, exit_code: int = 0) -> Run:
    """Runs `script` with `args` as the ranks 0 to nproc - 1 of a job of this machine.

    Raises AssertionError with what was printed if a rank does not end with `exit_code`, or not in `timeout` seconds.
    In the Run's `lines`, stderr comes after stdout.
    """
    start = time.monotonic()
    done = rank_processes(script, args, nproc, timeout)
    run = Run(command=f"{script} {args}", lines={}, results={}, exit_code=exit_code, seconds=time.monotonic() - start)
    for rank, process in enumerate(done):
        run.exit_codes[rank], run.lines[rank], run.results[rank] = process.returncode, [], {}
        for line in process.stdout.splitlines():
            if line.startswith("{") and line.endswith("}"):  # a result, as in launcher/launch.py
                run.results[rank] |= json.loads(line)
            else:
                run.lines[rank].append(line)
        run.lines[rank] += process.stderr.splitlines()
    assert set(run.exit_codes.values()) == {exit_code}, f"{run.exit_codes}: {run.lines}"
    return run


def rank_processes(
    script: str | Path,
    args: Iterable[object],
    nproc: int,
    timeout: float,
    memory: int = resource.RLIM_INFINITY,
    **variables: str,
) -> list[subprocess.CompletedProcess]:
    """As `processes`, for ranks 0 to nproc - 1 of a job. No rank is ended when another has failed.

    `variables`: environment variables of every rank.
    """
    store = forked.open_store()  # so that no port has to be guessed
    environments = [forked.rank_environment(rank, nproc, store.port) | variables for rank in range(nproc)]
    return processes(script, args, environments, timeout, memory)


def processes(
    script: str | Path,
    args: Iterable[object],
    environments: list[Mapping[str, str]],
    timeout: float,
    memory: int = resource.RLIM_INFINITY,
) -> list[subprocess.CompletedProcess]:
    """One process for each of `environments`, which are added to this process's own, with any exit codes.

    `memory`: bytes of addresses that each may take. Raises AssertionError after `timeout` seconds. Time in which other
    programs had the cores does not count.
    """
    shared = {name: value for name, value in os.environ.items() if name not in RANK_NAMES} | {"OMP_NUM_THREADS": "1"}
    command, clock = [str(script), *map(str, args)], FairClock()
    with tempfile.TemporaryDirectory(prefix="warm_") as folder:
        outputs = [Path(folder) / str(n) for n in range(len(environments))]
        for output in outputs:  # a process may be ended before it opens them
            Path(f"{output}.stdout").touch()
            Path(f"{output}.stderr").touch()
        started = [
            CONTEXT.Process(target=_run_rank, args=(command, shared | own, os.getcwd(), output, memory))
            for own, output in zip(environments, outputs, strict=True)
        ]
        try:
            for process in started:
                process.start()
            while clock.seconds < timeout and any(process.exitcode is None for process in started):
                multiprocessing.connection.wait([p.sentinel for p in started if p.exitcode is None], timeout=1)
                clock.update()
            late = [rank for rank, process in enumerate(started) if process.exitcode is None]
        finally:
            for process in started:
                if process.pid:
                    process.kill()
                    process.join()
        done = [
            subprocess.CompletedProcess(
                command, process.exitcode, *(Path(f"{output}{end}").read_text() for end in (".stdout", ".stderr"))
            )
            for process, output in zip(started, outputs, strict=True)
        ]
    assert not late, f"ranks {late} had not ended after {timeout} s: {done}"
    return done


def _run_rank(command, environment, folder, output, memory):
    if memory != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    forked.set_up_process(command, environment, folder, output)
    faulthandler.enable()  # prints the stack of a rank that torch aborts
    forked.run_script(command[0])
