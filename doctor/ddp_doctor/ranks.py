"""Finds the processes that are a job's ranks, by their variables or their connections, and looks at them."""

import psutil

from ddp_doctor import movement, stacks
from ddp_doctor.job import Rank


def by_environment(processes) -> dict[int, psutil.Process]:
    """By RANK, those that were started as ranks; what a rank started itself has its variables, too, and is none.

    Where a rank of a job of one has started ranks with variables of their own, those.
    """
    variables = {}
    for process in processes:
        try:
            environment = process.environ()
            if environment.get("RANK", "").isdigit() and environment.get("WORLD_SIZE", "").isdigit():
                job = environment["WORLD_SIZE"], environment.get("MASTER_PORT")
                variables[process.pid] = (process, process.ppid(), (int(environment["RANK"]), *job))
        except (psutil.Error, OSError):
            continue
    ranks = [each for each in variables.values() if each[2] != variables.get(each[1], (None,) * 3)[2]]
    inner = [each for each in ranks if each[1] in variables]
    outer = [each for each in ranks if each[1] not in variables]
    chosen = inner if inner and len(outer) < 2 else outer
    return {rank: process for process, _, (rank, *_) in chosen}


def by_connections(processes) -> dict[int, psutil.Process]:
    """Those that are connected with each other, as the ranks of a group are; {} if there are none.

    A rank's number is that in the locals of its stack, else its place among the process ids.
    """
    ends: dict[psutil.Process, set] = {}
    for process in processes:
        try:
            ends[process] = {(each.laddr, each.raddr) for each in process.net_connections("tcp") if each.raddr}
            ends[process] -= ends.get(process.parent(), set())  # a fork has its parent's
        except psutil.Error:
            continue
    everywhere = {(local, remote): process for process, pairs in ends.items() for local, remote in pairs}
    connected = [
        process
        for process, pairs in ends.items()
        if any(everywhere.get((remote, local), process) != process for local, remote in pairs)
    ]
    connected.sort(key=lambda process: process.pid)
    numbers = [_number(process.pid) for process in connected]
    if None in numbers or len(set(numbers)) < len(numbers):
        numbers = range(len(connected))
    return dict(sorted(zip(numbers, connected, strict=True), key=lambda pair: pair[0]))


def _number(pid: int) -> int | None:
    _, variables, _ = stacks.stack_of(pid)
    texts = [text for name, text in variables.items() if name == "_wrap.i" or name.endswith(".rank")]
    return next((int(text) for text in texts if text.isdigit()), None)


def look(rank: Rank, process: psutil.Process) -> None:
    """Notes where the process stands, and what it waits for. `rank.state` is known."""
    rank.pid, rank.sleeps = process.pid, stacks.sleeps_for(process.pid)
    stack, rank.variables, rank.stack_problem = stacks.stack_of(process.pid, rank.state == "stopped")
    rank.stack = stack or rank.stack  # else what the recorder saw from inside
    in_subprocess = any(frame.file.endswith("/subprocess.py") for frame in rank.stack)
    if rank.state in ("waiting", "transferring") and not rank.waits_for_peers():
        rank.waits_for = movement.waits_for(process, in_subprocess)
