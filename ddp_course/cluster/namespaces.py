"""The namespaces of a cluster: `unshare` starts them, `enter.py` enters them, they end with their first process."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from ddp_course.cluster.keeper import HEAD, UNSHARE

KEEPER, ENTER = Path(__file__).with_name("keeper.py"), Path(__file__).with_name("enter.py")
SBIN = "/usr/sbin:/sbin"  # the folders of ip and tc, which PATH may lack


def entering(tasks: list[dict]) -> list[str]:
    """The command line that runs tasks of `enter.py`, each in its machine."""
    return [sys.executable, "-I", "-S", str(ENTER), json.dumps(tasks)]


def path() -> str:
    """PATH with this Python's folder, so that a job uses its torchrun, and with the folders of ip and tc."""
    return f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}:{SBIN}"


def user_namespace_options() -> list[str]:
    """The options that `unshare` needs without root."""
    return [] if os.geteuid() == 0 else ["--user", "--map-root-user"]


def build(nodes: list[str], limit: list[str]) -> tuple[subprocess.Popen, dict[str, int]]:
    """Start `head` and the machines. Returns the process of `unshare`, and the pids of their first processes by name.

    limit: the words of `tc` that limit each cable. Raises RuntimeError with stderr if the start fails.
    """
    owner = os.pidfd_open(os.getpid())
    keeper = [sys.executable, "-I", "-S", str(KEEPER), "keep", str(owner), json.dumps(limit), *nodes]
    with tempfile.TemporaryFile("w+") as errors:
        holder = subprocess.Popen(
            [*UNSHARE, *user_namespace_options(), *keeper],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            pass_fds=[owner],
            start_new_session=True,
            env=os.environ | {"PATH": path()},
        )
        try:
            os.close(owner)
            ready = holder.stdout.readline().strip() == b"ready"
            holder.stdout.close()
            if not ready:
                holder.wait()
                errors.seek(0)
                raise RuntimeError(errors.read().strip() or f"unshare ended with exit code {holder.returncode}")
            return holder, first_processes(holder.pid)
        except BaseException:
            holder.kill()
            holder.wait()
            raise


def first_processes(holder: int) -> dict[str, int]:
    """The pids of the machines' first processes by name; that of `head` is the keeper."""
    pids = {}
    for process in psutil.Process(holder).children(recursive=True):
        words = process.cmdline()
        if str(KEEPER) in words[:4]:  # in the command line of unshare it comes later
            pids[HEAD if words[4] == "keep" else words[-1]] = process.pid
    return pids


def end(holder: subprocess.Popen, pids: dict[str, int], owner: int | None = None) -> None:
    """Kill the first process, and with it all others; return when the last one has ended.

    owner: the process that started the cluster; does nothing in a fork of it.
    """
    if owner not in (None, os.getpid()):
        return
    with contextlib.suppress(ProcessLookupError):
        if holder.poll() is None:
            os.kill(pids[HEAD], signal.SIGKILL)
    try:
        holder.wait(10)
    except subprocess.TimeoutExpired:
        holder.kill()
        holder.wait()
