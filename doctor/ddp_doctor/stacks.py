"""Where a process stands now: its Python stack, read from outside with py-spy, and how long it still sleeps."""

import json
import os
import platform
import shutil
import struct
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass, field
from pathlib import Path

from ddp_doctor.history import Frame

TIMEOUT = 60  # seconds for py-spy: only a real hang takes so long


def py_spy() -> str | None:
    """The path of py-spy: the one installed with this Python, else the one on the PATH; None if there is none."""
    candidates = [Path(sys.executable).with_name("py-spy"), Path(sysconfig.get_path("scripts"), "py-spy")]
    return next((str(path) for path in candidates if path.exists()), shutil.which("py-spy"))


@dataclass(frozen=True)
class Stack:
    """The stack of a main thread.

    frames     innermost first
    variables  those of all frames, as text: {"function.variable": value}
    problem    why nothing could be read, one sentence; else None
    """

    frames: tuple[Frame, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    problem: str | None = None


def stack_of(pid: int, stopped: bool = False) -> Stack:
    """The stack of process `pid`.

    stopped: a signal has stopped the process, so py-spy must not pause it, because it would continue it afterwards.
    """
    program = py_spy()
    if program is None:
        problem = "py-spy is not installed, so no stack could be read; install it with: pip install py-spy"
        return Stack(problem=problem)
    command = [program, "dump", "--json", "--locals", "--pid", str(pid), *(["--nonblocking"] if stopped else [])]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return Stack(problem=f"py-spy got no answer from process {pid} within {TIMEOUT} s")
    if run.returncode:
        return Stack(problem=_refusal(pid, run.stderr))
    try:
        threads = json.loads(run.stdout)
        main = next((thread for thread in threads if thread["thread_name"] == "MainThread"), threads[0])
    except (ValueError, IndexError, KeyError):
        return Stack(problem=f"py-spy found no Python thread in process {pid}")
    frames, variables = [], {}
    for frame in main["frames"]:
        function = frame["name"].rpartition(".")[2]  # newer versions of py-spy write Class.function
        frames.append(Frame(frame["filename"], int(frame["line"]), function))
        for variable in frame.get("locals") or ():
            variables.setdefault(f"{function}.{variable['name']}", str(variable.get("repr")))
    return Stack(tuple(frames), variables)


def wake_time(pid: int) -> float | None:
    """When the main thread of `pid` wakes from time.sleep, by time.monotonic; None if it does not sleep, or unknown.

    Linux only: time.sleep gives the kernel a pointer to its time of waking, which is read from the process's memory.
    """
    number = {"x86_64": 230, "aarch64": 115}.get(platform.machine())  # of clock_nanosleep
    try:
        call = Path(f"/proc/{pid}/syscall").read_text().split()
        if number is None or call[0] != str(number):
            return None
        with open(f"/proc/{pid}/mem", "rb") as memory:
            memory.seek(int(call[3], 16))
            seconds, nanoseconds = struct.unpack("qq", memory.read(16))
    except (OSError, ValueError, IndexError, struct.error):
        return None
    until = seconds + nanoseconds / 1e9
    absolute = int(call[2], 16) & 1  # TIMER_ABSTIME; without it, the seconds it asked for
    return until if absolute else time.monotonic() + until


def _refusal(pid: int, message: str) -> str:
    if "denied" in message.lower() or "permission" in message.lower() or "not permitted" in message.lower():
        cure = "run the doctor as root"
        if sys.platform == "linux":
            cure += " (or, in a container, with the capability SYS_PTRACE)"
        return f"py-spy may not read process {pid} as user {os.getuid()}; {cure} to see its stack"
    last = message.strip().splitlines()[-1] if message.strip() else "no reason given"
    return f"py-spy could not read process {pid}: {last}"
