"""The namespaces behind a cluster: started by `unshare`, entered by `enter.py`, ended with their first process."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

KEEPER, ENTER = Path(__file__).with_name("keeper.py"), Path(__file__).with_name("enter.py")
HEAD, SWITCH = "head", "switch"  # the same place, as a machine and as what the cables end in
NAMESPACES = ["--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
SBIN = "/usr/sbin:/sbin"  # where ip and tc are; not on everybody's PATH


def entering(tasks: list[dict]) -> list[str]:
    """The command line that runs the tasks, each in its machine."""
    return [sys.executable, "-I", "-S", str(ENTER), json.dumps(tasks)]


def path() -> str:
    """PATH, as after `source .venv/bin/activate`, so that a job finds this Python's torchrun, and with ip and tc."""
    return f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}:{SBIN}"


def as_user() -> list[str]:
    """The options of `unshare` that are needed without root."""
    return [] if os.geteuid() == 0 else ["--user", "--map-root-user"]


def build(nodes: list[str], words: list[str]) -> tuple[subprocess.Popen, dict[str, int]]:
    """Start the machines: the process that holds them, and the pids of each one's first process and the switch's.

    Raises RuntimeError with what was said if that fails.
    """
    me = os.pidfd_open(os.getpid())
    keeper = [sys.executable, "-I", "-S", str(KEEPER), "keep", str(me), json.dumps(words), *nodes]
    with tempfile.TemporaryFile("w+") as errors:
        holder = subprocess.Popen(
            ["unshare", *as_user(), *NAMESPACES, *keeper],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            pass_fds=[me],
            start_new_session=True,
            env=os.environ | {"PATH": path()},
        )
        try:
            os.close(me)
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
    """By name, the pids of the machines' first processes, and the keeper's, "switch" and "head" at once."""
    found = {}
    for process in psutil.Process(holder).children(recursive=True):
        words = process.cmdline()
        if str(KEEPER) in words[:4]:  # not unshare's
            if words[4] == "keep":
                found[SWITCH] = found[HEAD] = process.pid
            else:
                found[words[-1]] = process.pid
    return found


def end(holder: subprocess.Popen, pids: dict[str, int], owner: int | None = None) -> None:
    """Kill the first process, and with it all others; back when the last one is gone."""
    if owner not in (None, os.getpid()):  # a fork of the process that has started it
        return
    with contextlib.suppress(ProcessLookupError):
        if holder.poll() is None:
            os.kill(pids[SWITCH], signal.SIGKILL)
    try:
        holder.wait(10)
    except subprocess.TimeoutExpired:
        holder.kill()
        holder.wait()
