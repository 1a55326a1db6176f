"""Run a job of several nodes on this machine: one torchrun per node, started and killed while the job runs.

with Nodes("scripts/13_waits.py", folder) as job:
    job.start("a")
    job.start("b", when=(folder / "a of 1").exists)
    runs = job.ended()
"""

import contextlib
import os
import random
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import psutil
from ddp_doctor.launch.supervise import environment_of, sweep, tagged

from ddp_course.launcher.launch import Run, RunFailed, torchrun

JOB_VARIABLE, NODE_VARIABLE = "DDP_COURSE_JOB", "NODE"
MAX_NODES, TIMEOUT_SECONDS = 2, 900
NON_EPHEMERAL_PORTS = range(20_000, 32_768)  # all lower than the ephemeral ports of Linux, macOS and Windows


def free_port() -> int:
    """A free port, for processes that have to know it before one of them listens on it.

    It is not an ephemeral port, which the system could give to another process in the meantime.
    """
    for port in random.SystemRandom().sample(NON_EPHEMERAL_PORTS, len(NON_EPHEMERAL_PORTS)):
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # allows a port in TIME_WAIT
            try:
                free.bind(("localhost", port))
            except OSError:
                continue
        return port
    raise OSError(f"no port from {NON_EPHEMERAL_PORTS.start} to {NON_EPHEMERAL_PORTS.stop - 1} is free")


class Nodes:
    """A job of one rank per node, which starts with one node and can grow to MAX_NODES.

    `script`, `args` and `env` are those of `launcher.torchrun`; a rank reads the name of its node from the variable
    NODE. `conf` is added to torchrun's --rdzv-conf. Leaving the `with` block ends all processes that still run.
    """

    def __init__(self, script: str | Path, *args, env: Mapping[str, object] | None = None, conf: str = "") -> None:
        self._script, self._args, self._env = script, args, env or {}
        rdzv_conf = f"last_call_timeout=1,{conf}" if conf else "last_call_timeout=1"
        self._options = [
            f"--nnodes=1:{MAX_NODES}",
            "--max-restarts=3",
            "--rdzv-backend=c10d",
            "--rdzv-id=job",
            f"--rdzv-endpoint=localhost:{free_port()}",
            f"--rdzv-conf={rdzv_conf}",
        ]
        self._tag, self._futures = uuid.uuid4().hex, {}
        self._pool = ThreadPoolExecutor(MAX_NODES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        while not all(future.done() for future in self._futures.values()):
            sweep(self._tag, variable=JOB_VARIABLE)  # again, because a node may not have started its process yet
            time.sleep(0.1)
        self._pool.shutdown()

    def start(self, name: str, when: Callable[[], bool] = lambda: True) -> None:
        """Wait until `when()` is true, then start the torchrun of the node `name`. The first node hosts the rendezvous.

        Raises RunFailed, as `until` does, if a node ends before.
        """
        self.until(when)
        env = {**self._env, NODE_VARIABLE: name, JOB_VARIABLE: self._tag}
        # torchrun orders nodes by address, then by process id, which wraps around. The first node is to have rank 0.
        address = "localhost" if self._futures else "127.0.0.1"
        self._futures[name] = self._pool.submit(
            torchrun,
            self._script,
            *self._args,
            nproc=1,
            timeout=TIMEOUT_SECONDS,
            env=env,
            check=False,
            quiet=True,
            torchrun_args=[*self._options, f"--local-addr={address}"],
        )

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition()` is true. Raises RunFailed if a node ends before."""
        while True:
            ended = [name for name, future in self._futures.items() if future.done()]
            if condition():
                return
            if ended:
                run = self._futures[ended[0]].result()
                last_lines = "\n".join(run.launcher_lines[-10:])
                raise RunFailed(f"node {ended[0]} ended too early, with exit code {run.exit_code}\n{last_lines}", run)
            time.sleep(0.1)

    def kill(self, name: str) -> None:
        """Send SIGKILL to all processes of a node but its supervisor, as if its power failed."""

        def is_on_node(process):  # and no supervisor: those are children of this process
            with contextlib.suppress(psutil.Error):
                return environment_of(process).get(NODE_VARIABLE) == name and process.ppid() != os.getpid()
            return False

        # Again and again: torchrun may have started another rank before it was killed itself.
        while processes := list(filter(is_on_node, tagged(self._tag, JOB_VARIABLE))):
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    process.kill()

    def ended(self) -> dict[str, Run]:
        """Wait until all nodes have ended; returns each node's Run under its name."""
        return {name: future.result() for name, future in self._futures.items()}
