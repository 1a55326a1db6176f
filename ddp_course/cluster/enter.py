"""Run commands inside machines, each in its own, and end when all of them have ended.

    enter.py [{"pid": of a machine's first process, "command": [...], "env": {...}, "log": file or null}, ...]

SIGTERM is passed on to the commands. When a command has failed, the others get `PATIENCE` seconds, then SIGTERM, then
SIGKILL, because the rest of a job would wait for its peer forever. "exit" in a task names a file for its exit code.
The exit code is that of the first command that failed, also if a signal killed it.
Started by file path, with the standard library only.
"""

import ctypes
import json
import os
import signal
import sys
import time

USER = 0x10000000  # CLONE_NEWUSER
NAMESPACES = 0x00020000 | 0x04000000 | 0x20000000 | 0x40000000  # CLONE_NEW...: mount, UTS, pid, network
PARENT_DEATH_SIGNAL = 1  # for prctl
PATIENCE = 5.0  # seconds
KILL_DELAY = 5.0  # seconds between SIGTERM and SIGKILL
libc = ctypes.CDLL(None, use_errno=True)


def enter_namespaces(pid):
    """Enter the network, host name and mount namespaces of `pid`; children also enter its process namespace."""
    folder, flags = os.getcwd(), NAMESPACES
    if os.stat("/proc/self/ns/user").st_ino != os.stat(f"/proc/{pid}/ns/user").st_ino:
        flags |= USER
    machine = os.pidfd_open(pid)
    if libc.setns(machine, flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), f"the namespaces of process {pid}")
    os.close(machine)
    os.chdir(folder)


def start(task):
    """Start the command by two forks; returns the pid of the first, the command's parent outside its pid namespace."""
    parent = os.fork()
    if parent:
        return parent
    libc.prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
    try:
        enter_namespaces(task["pid"])
        child = os.fork()
        if not child:
            run(task)
    except OSError as error:
        sys.stderr.write(f"cannot enter the machine: {error}\n")
        sys.stderr.flush()
        os._exit(126)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    end_like(os.waitpid(child, 0)[1])


def run(task):
    """Replace this process by the command."""
    libc.prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        if task.get("log"):
            log = os.open(task["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
        os.execvpe(task["command"][0], task["command"], os.environ | task.get("env", {}))
    except OSError as error:
        os.write(2, f"{task['command'][0]}: {error.strerror}\n".encode())
        os._exit(127)


def end_like(status):
    """End with a child's exit code, or by the signal that killed it."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code)


def main(tasks):
    running, signalled, failed_at, first = {}, set(), None, 0

    def pass_on(number, _frame):
        for pid in running:
            os.kill(pid, number)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the commands as well
    for task in tasks:
        running[start(task)] = task
    signal.signal(signal.SIGTERM, pass_on)
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG if failed_at else 0)
        if pid:
            task = running.pop(pid)
            if task.get("exit"):
                with open(task["exit"], "w") as file:
                    file.write(str(os.waitstatus_to_exitcode(status)))
            if status and not first:
                first, failed_at = status, time.monotonic()
            continue
        time.sleep(0.05)
        for wait, number in ((PATIENCE, signal.SIGTERM), (PATIENCE + KILL_DELAY, signal.SIGKILL)):
            if time.monotonic() > failed_at + wait and number not in signalled:
                signalled.add(number)
                pass_on(number, None)
    end_like(first)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
