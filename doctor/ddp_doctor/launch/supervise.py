"""The process between a notebook kernel and torchrun: it ends the run when it is asked to, or when the kernel dies.

Why it exists: torchrun starts every rank in a session of its own, so no process group reaches them, and a kernel
that is killed with -9 cannot clean up. This process lives in its own session too, holds the reading end of a pipe
from the kernel, and ends everything when that pipe closes. Every process of a run carries the environment variable
DDP_DOCTOR_RUN, so whatever slips through is found by it.

Started by file path, with the standard library and psutil only: it is up in a tenth of a second.
"""

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
    """The variables of `process`, a psutil.Process.

    Linux shows none while a program is being started: a young one that seems to have none is asked again, for a second.
    """
    for _ in range(100):
        variables, young = process.environ(), time.time() - process.create_time() < 10
        if variables or not young or not process.exe():  # what the kernel runs itself has no file
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
            continue  # gone meanwhile, or not ours to look at
    return processes


def sweep(tag, grace=3.0, variable=RUN_VARIABLE):
    """Ends every process whose environment has `variable` = `tag`: SIGTERM, up to `grace` seconds, then SIGKILL.

    With grace 0 SIGKILL comes at once. Returns what it found, one "pid 123: command line" each; an empty list
    means that nothing was left.
    """
    lines = {}
    soon, late = time.monotonic() + grace, time.monotonic() + grace + 10
    while (survivors := tagged(tag, variable)) and time.monotonic() < late:
        for process in survivors:
            try:
                if process.pid not in lines:
                    lines[process.pid] = f"pid {process.pid}: {' '.join(process.cmdline())}"
                    if grace > 0:
                        process.terminate()
                if time.monotonic() >= soon:
                    process.kill()
            except psutil.Error:
                continue
        time.sleep(0.05)
    return list(lines.values())


def hear(kernel, wait):
    """The kernel's order, waited for `wait` seconds: "stop 10" (a grace in seconds); "" if it is gone; None if none."""
    if os.getppid() != kernel:  # a child that the kernel forked may still hold the pipe open
        return ""
    if select.select([0], [], [], wait)[0]:
        return os.read(0, 1000).decode().strip()
    return None


def running_ranks(launcher):
    """The ranks that torchrun (a Popen), or the torchruns below it, have running now: by the name of the variable."""
    ranks = {"LOCAL_RANK": set(), "RANK": set()}
    try:
        children = psutil.Process(launcher.pid).children(recursive=True)
    except psutil.Error:
        children = []  # torchrun has just ended
    for process in children:
        try:
            if process.status() != psutil.STATUS_ZOMBIE and "LOCAL_RANK" in (environment := process.environ()):
                for name, numbers in ranks.items():
                    numbers.add(int(environment[name]))
        except (psutil.Error, OSError, ValueError, KeyError):
            continue
    return {name: sorted(numbers) for name, numbers in ranks.items()}


def stop(launcher, kernel, word):
    """SIGTERM to torchrun, which passes it on to the ranks, then up to the grace that `word` names for all to end."""
    grace = float(word.removeprefix("stop ")) if word else ORPHAN_GRACE
    deadline = time.monotonic() + grace
    launcher.terminate()
    while launcher.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
        again = hear(kernel, 0)
        if again is not None and again != word:
            return  # asked twice: somebody is in a hurry


def main(kernel, folder, *command):
    """Runs `command`, its output in `folder`/launcher.log; the last line on stdout is {"exit_code", "running"}."""
    tag = os.environ[RUN_VARIABLE]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that `finally` below still runs
    running, word, launcher = {}, None, None
    try:
        with open(os.path.join(folder, "launcher.log"), "wb") as log:
            launcher = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        while launcher.poll() is None:
            word = hear(kernel, 0.05)
            if word is not None:
                running = running_ranks(launcher)
                stop(launcher, kernel, word)
                break
    finally:
        # torchrun was asked to end and its grace is used up; in any other case what remains has had no SIGTERM.
        used_up = word is not None and launcher.poll() is None
        sweep(tag, grace=0 if used_up else ORPHAN_GRACE)
        if launcher is not None:
            launcher.wait()
    try:
        print(json.dumps({"exit_code": launcher.returncode, "running": running}), flush=True)
        while hear(kernel, 1) != "":
            pass  # the kernel reads the rest of the ranks' lines, then closes the pipe
    except BrokenPipeError:
        pass
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
