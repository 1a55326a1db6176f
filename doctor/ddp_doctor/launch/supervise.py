"""The process between a notebook kernel and torchrun: it ends the run when the kernel asks for it, or dies.

Why it exists: torchrun starts every rank in a session of its own, so no process group reaches them, and a kernel
that is killed with -9 cannot clean up. This process lives in its own session too, holds the reading end of a pipe
from the kernel, and ends everything when that pipe closes. Every process of a run has the environment variable
DDP_DOCTOR_RUN, by which processes that are left over are found.

Started by file path, and imports the standard library and psutil only: it is up in a tenth of a second.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time

import psutil

RUN_VARIABLE = "DDP_DOCTOR_RUN"
ORPHAN_GRACE = 3.0  # seconds for the ranks to end by themselves when the kernel is gone


def environment_of(process):
    """The environment variables of `process`, a psutil.Process.

    Linux shows none while a program is being started: a process younger than ten seconds that seems to have none is
    asked again, for a second.
    """
    for _ in range(100):
        variables, is_young = process.environ(), time.time() - process.create_time() < 10
        if variables or not is_young or not process.exe():  # threads of Linux itself have no file
            break
        time.sleep(0.01)
    return variables


def tagged(tag, variable=RUN_VARIABLE):
    """Every living process, except this one, in whose environment `variable` is `tag`: a list of psutil.Process."""
    processes = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and environment_of(process).get(variable) == tag:
                if process.status() != psutil.STATUS_ZOMBIE:
                    processes.append(process)
        except (psutil.Error, OSError):
            continue  # it has ended, or we may not read it
    return processes


def sweep(tag, grace=3.0, variable=RUN_VARIABLE):
    """Ends every process whose environment has `variable` = `tag`: SIGTERM, up to `grace` seconds, then SIGKILL.

    With grace 0 SIGKILL comes at once. Returns what it found, one "pid 123: command line" each; an empty list
    means that nothing was left. Each wait begins with its signal: on a busy machine a search takes seconds.
    """
    lines = {}
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, 10.0)):
        end_time = None if seconds > 0 else 0.0
        while (end_time is None or time.monotonic() < end_time) and (survivors := tagged(tag, variable)):
            for process in survivors:
                with contextlib.suppress(psutil.Error):
                    is_new = process.pid not in lines
                    if is_new:
                        lines[process.pid] = f"pid {process.pid}: {' '.join(process.cmdline())}"
                    if is_new or number == signal.SIGKILL:
                        process.send_signal(number)
            end_time = end_time or time.monotonic() + seconds
            time.sleep(0.05)
    return list(lines.values())


def read_request(kernel, wait):
    """The kernel's request: "stop 10" (seconds of grace); "" if it is gone; None if none comes for `wait` seconds."""
    if os.getppid() != kernel:  # a child that the kernel forked may still hold the pipe open
        return ""
    if select.select([0], [], [], wait)[0]:
        return os.read(0, 1000).decode().strip()
    return None


def running_ranks(launcher):
    """{"LOCAL_RANK": numbers, "RANK": numbers} of the running ranks below `launcher`, the Popen of main's command."""
    ranks = {"LOCAL_RANK": set(), "RANK": set()}
    try:
        children = psutil.Process(launcher.pid).children(recursive=True)
    except psutil.Error:
        children = []  # torchrun has just ended
    for process in children:
        try:
            if process.status() != psutil.STATUS_ZOMBIE and "LOCAL_RANK" in (environment := environment_of(process)):
                for name, numbers in ranks.items():
                    numbers.add(int(environment[name]))
        except (psutil.Error, OSError, ValueError, KeyError):
            continue
    return {name: sorted(numbers) for name, numbers in ranks.items()}


def stop(launcher, kernel, request):
    """Sends SIGTERM to torchrun, which passes it on to its ranks, and waits for its end up to the request's grace."""
    grace = float(request.removeprefix("stop ")) if request else ORPHAN_GRACE
    launcher.terminate()
    deadline = time.monotonic() + grace
    while launcher.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
        again = read_request(kernel, 0)
        if again is not None and again != request:
            return  # another request, or the kernel's end, ends the grace


def main(kernel, folder, *command):
    """Runs `command`, its output in `folder`/launcher.log; prints {"exit_code": ..., "running": ...} at its end.

    kernel   the pid of the process that has started this one, and reads stdout
    folder   is removed when the kernel has closed its pipe
    """
    tag = os.environ[RUN_VARIABLE]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that `finally` below still runs
    running, request, launcher = {}, None, None
    try:
        with open(os.path.join(folder, "launcher.log"), "wb") as log:
            launcher = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        while launcher.poll() is None:
            request = read_request(kernel, 0.05)
            if request is not None:
                running = running_ranks(launcher)
                stop(launcher, kernel, request)
                break
    finally:
        # If torchrun has used up its grace, what remains has had a SIGTERM; in any other case it has not.
        grace_is_over = request is not None and launcher.poll() is None
        sweep(tag, grace=0 if grace_is_over else ORPHAN_GRACE)
        if launcher is not None:
            launcher.wait()
    try:
        print(json.dumps({"exit_code": launcher.returncode, "running": running}), flush=True)
        while read_request(kernel, 1) != "":
            pass  # the kernel reads the rest of the ranks' lines, then closes the pipe
    except BrokenPipeError:
        pass
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
