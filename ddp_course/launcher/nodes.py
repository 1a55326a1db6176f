"""Several nodes of one job on this machine: a torchrun each, which come and go while the job runs.

with Nodes("scripts/13_waits.py", folder) as job:
    job.start("a")
    job.start("b", when=(folder / "a of 1").exists)
    runs = job.ended()
"""

import os
import random
import socket
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import psutil
from ddp_doctor.launch.supervise import sweep, tagged

from ddp_course.launcher.launch import Run, RunFailed, torchrun

JOB_VARIABLE, NODE_VARIABLE = "DDP_COURSE_JOB", "NODE"
NON_EPHEMERAL_PORTS = range(20_000, 32_768)  # all lower than the ephemeral ports of Linux, macOS and Windows


def free_port() -> int:
    """A free port for several processes that have to know it before one of them listens there.

    No ephemeral port: the system could give that to another process before ours listens.
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
    """A job of one rank per node, which starts with one node and can grow to `most`.

    `script`, `args` and `env` are those of `launcher.torchrun`; a rank reads the name of its node from the variable
    NODE. `conf` adds to torchrun's --rdzv-conf. Leaving the `with` block ends all processes that still run.
    """

    def __init__(self, script, *args, env=None, most=2, conf="", timeout=900):
        self._script, self._args, self._env, self._timeout = script, args, env or {}, timeout
        self._options = [
            f"--nnodes=1:{most}",
            "--max-restarts=3",
            "--rdzv-backend=c10d",
            "--rdzv-id=job",
            f"--rdzv-endpoint=localhost:{free_port()}",
            "--local-addr=127.0.0.1",
            f"--rdzv-conf=last_call_timeout=1{conf and ','}{conf}",
        ]
        self._tag, self._futures = uuid.uuid4().hex, {}
        self._pool = ThreadPoolExecutor(most)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._pool.shutdown(wait=False, cancel_futures=True)
        if not all(future.done() for future in self._futures.values()):
            sweep(self._tag, variable=JOB_VARIABLE)
        self._pool.shutdown()

    def start(self, name: str, when=lambda: True) -> None:
        """Start the torchrun of the node `name` as soon as `when()` is true. The first node also hosts the rendezvous.

        Raises RunFailed, as `until` does, if a node has ended before.
        """
        self.until(when)
        env = {**self._env, NODE_VARIABLE: name, JOB_VARIABLE: self._tag}
        how = {"nproc": 1, "timeout": self._timeout, "check": False, "quiet": True, "torchrun_args": self._options}
        self._futures[name] = self._pool.submit(torchrun, self._script, *self._args, env=env, **how)

    def until(self, condition) -> None:
        """Wait until `condition()` is true. Raises RunFailed if a node has ended before."""
        while True:
            ended = [name for name, future in self._futures.items() if future.done()]
            if condition():
                return
            if ended:
                run = self._futures[ended[0]].result()
                last = "\n".join(run.launcher_lines[-10:])
                raise RunFailed(f"node {ended[0]} ended too early, with exit code {run.exit_code}\n{last}", run)
            time.sleep(0.1)

    def kill(self, name: str) -> None:
        """SIGKILL to everything of a node, as if its power failed."""
        for process in tagged(self._tag, JOB_VARIABLE):
            try:
                if process.environ().get(NODE_VARIABLE) == name and process.ppid() != os.getpid():  # not the supervisor
                    process.kill()
            except psutil.Error:
                continue

    def ended(self) -> dict[str, Run]:
        """Each node's finished run, as soon as all have ended."""
        return {name: future.result() for name, future in self._futures.items()}
