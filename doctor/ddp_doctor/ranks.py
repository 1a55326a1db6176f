"""Finds the processes that are a job's ranks, by their environment or their connections, and looks at them."""

import contextlib
import time

import psutil

from ddp_doctor import movement, stacks
from ddp_doctor.job import Rank


def by_environment(processes) -> dict[int, psutil.Process]:
    """{rank: process} of those processes that were started as ranks, according to their environment.

    A process with the same variables as its parent has inherited them, and is not a rank.
    If a single rank has started processes with other variables, those are the ranks, and it is not.
    If there are several ranks, processes that they have started are not ranks, whatever their variables.
    """
    candidates = {}  # pid -> (process, the parent's pid, (RANK, WORLD_SIZE, MASTER_PORT))
    for process in processes:
        environment = movement.environment(process)
        if environment.get("RANK", "").isdigit() and environment.get("WORLD_SIZE", "").isdigit():
            variables = int(environment["RANK"]), environment["WORLD_SIZE"], environment.get("MASTER_PORT")
            with contextlib.suppress(psutil.Error):  # it has just ended
                candidates[process.pid] = process, process.ppid(), variables
    outer, inner = [], []
    for process, parent_pid, variables in candidates.values():
        if parent_pid not in candidates:
            outer.append((variables[0], process))
        elif candidates[parent_pid][2] != variables:
            inner.append((variables[0], process))
    return dict(inner if inner and len(outer) < 2 else outer)


def by_connections(processes) -> dict[int, psutil.Process]:
    """{rank: process} of those processes that have a TCP connection to another of them; {} if none has.

    The rank is read from the local variables of a process's stack. Unless all have one, and different ones, ranks are
    counted in the order of the process ids. In `processes` a parent comes before its children.
    """
    connections: dict[psutil.Process, set] = {}
    for process in processes:
        try:
            connections[process] = {(each.laddr, each.raddr) for each in process.net_connections("tcp") if each.raddr}
            connections[process] -= connections.get(process.parent(), set())  # a forked process inherits its parent's
        except psutil.Error:
            continue
    process_at = {ends: process for process, own in connections.items() for ends in own}
    connected = [
        process
        for process, own in connections.items()
        if any(process_at.get((remote, local), process) != process for local, remote in own)
    ]
    connected.sort(key=lambda process: process.pid)
    numbers = [_rank_in_stack(process.pid) for process in connected]
    if None in numbers or len(set(numbers)) < len(numbers):
        numbers = range(len(connected))
    return dict(sorted(zip(numbers, connected, strict=True), key=lambda pair: pair[0]))


def _rank_in_stack(pid: int) -> int | None:
    """The value of a local variable `rank`, or of `i` in _wrap, in which torch.multiprocessing.spawn starts a rank."""
    variables = stacks.stack_of(pid).variables
    texts = [text for name, text in variables.items() if name == "_wrap.i" or name.endswith(".rank")]
    return next((int(text) for text in texts if text.isdigit()), None)


def look(rank: Rank, process: psutil.Process) -> None:
    """Fills in the rank's pid, stack, local variables and sleep, and what it waits for. `rank.state` must be set."""
    rank.pid, rank.wake_time = process.pid, stacks.wake_time(process.pid)
    rank.sleeps = rank.wake_time and max(0.0, rank.wake_time - time.monotonic())
    rank.uses_gpu = movement.uses_gpu(process.pid)
    stack = stacks.stack_of(process.pid, rank.state == "stopped")
    rank.variables, rank.stack_problem = stack.variables, stack.problem
    rank.stack = stack.frames or rank.stack  # if py-spy has read none, the recorder's last one stays
    in_subprocess = any(frame.file.endswith("/subprocess.py") for frame in rank.stack)
    if rank.state in ("waiting", "transferring") and not rank.waits_for_peers():
        rank.waits_for = movement.waits_for(process, in_subprocess)
