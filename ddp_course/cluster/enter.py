"""Run commands inside machines, each in its own, and end when all of them have ended.

    enter.py TASKS    a JSON list of {"pid": of a machine's first process, "command": [...]} and, if wanted,
                      "env": {...}, "log": file for the output, "exit": file for the exit code

SIGTERM is passed on to the commands. When a command has failed, the others get `PATIENCE` seconds, then SIGTERM, then
SIGKILL, because the rest of a job would wait for its peer forever. This process ends as the first command that failed,
with its exit code or by its signal. Started by file path, with the standard library only.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
import time

CLONE_NEWUSER = 0x10000000
NAMESPACES = 0x00020000 | 0x04000000 | 0x20000000 | 0x40000000  # CLONE_NEW...: mount, UTS, pid, network
PR_SET_PDEATHSIG = 1
PATIENCE = 5.0  # seconds from the first failure to SIGTERM
KILL_DELAY = 5.0  # seconds between SIGTERM and SIGKILL
libc = ctypes.CDLL(None, use_errno=True)


def enter_namespaces(pid):
    """Enter the network, UTS and mount namespaces of process `pid`; children enter its pid namespace, too."""
    folder, flags = os.getcwd(), NAMESPACES
    if os.stat("/proc/self/ns/user").st_ino != os.stat(f"/proc/{pid}/ns/user").st_ino:
        flags |= CLONE_NEWUSER
    machine = os.pidfd_open(pid)
    if libc.setns(machine, flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), f"the namespaces of process {pid}")
    os.close(machine)
    os.chdir(folder)


def start(task):
    """Start the command by two forks and return the pid of the first child.

    The first child enters the machine's namespaces and ends as its own child, which is in the pid namespace and becomes
    the command.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    end_with(parent)
    try:
        enter_namespaces(task["pid"])
        parent, child = os.getpid(), os.fork()
        if not child:
            end_with(parent)
            run(task)
    except OSError as error:
        sys.stderr.write(f"cannot enter the machine: {error}\n")
        sys.stderr.flush()
        os._exit(126)
    signal.signal(signal.SIGTERM, lambda *_: send(child, signal.SIGTERM))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    end_like(os.waitpid(child, 0)[1])


def end_with(parent):
    """From now on this process ends with its parent, also if that has ended since the fork."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() not in (parent, 0):  # 0: a process of another pid namespace
        os._exit(128 + signal.SIGKILL)


def run(task):
    """Replace this process by the command."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    try:
        if task.get("log"):
            log = os.open(task["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
        os.execvpe(task["command"][0], task["command"], os.environ | task.get("env", {}))
    except OSError as error:
        os.write(2, f"{task['command'][0]}: {error.strerror}\n".encode())
        os._exit(127)


def send(pid, number):
    """Send a signal to a child, which may have ended just now."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def end_like(status):
    """End with a child's exit code, or by the signal that killed it."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def main(tasks):
    """Run all tasks and end as the first command that failed, or with exit code 0."""
    running, signalled, failed_at, first_status = {}, set(), None, 0

    def pass_on(number, _frame):
        for pid in running:
            send(pid, number)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the commands as well
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # in each process, until it can pass it on
    for task in tasks:
        running[start(task)] = task
    signal.signal(signal.SIGTERM, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG if failed_at else 0)
        if pid:
            task = running.pop(pid)
            if task.get("exit"):
                with open(task["exit"], "w") as file:
                    file.write(str(os.waitstatus_to_exitcode(status)))
            if status and not first_status:
                first_status, failed_at = status, time.monotonic()
            continue
        time.sleep(0.05)
        for wait, number in ((PATIENCE, signal.SIGTERM), (PATIENCE + KILL_DELAY, signal.SIGKILL)):
            if time.monotonic() > failed_at + wait and number not in signalled:
                signalled.add(number)
                pass_on(number, None)
    end_like(first_status)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
