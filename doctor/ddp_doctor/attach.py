"""Looks at a job that runs now, from outside, without changing it: the stacks of all its ranks on this machine."""

import time

import psutil

from ddp_doctor import debug_server, movement, ranks
from ddp_doctor.errors import InputError
from ddp_doctor.job import Job, Rank
from ddp_doctor.movement import environment

LISTEN = 2.0  # seconds over which CPU time and bytes are counted


def look_at_job(pid: int, server: str | None = None) -> Job:
    """The job that process `pid` belongs to, observed for LISTEN seconds.

    pid: torchrun, one of its ranks, or a process that a rank has started; the parent of ranks that were started by
    `multiprocessing`; or one of several ranks that were started by hand.
    server: address of torch's debug server, which knows the collectives that each rank has started.
    Raises InputError if there is no such process, no rank is found around it, it has started several jobs, or no server
    answers.
    """
    try:
        processes = _ranks_around(psutil.Process(pid))
    except (psutil.Error, ValueError) as error:
        message = f"There is no process {pid} to look at ({error}); the pid of torchrun or of a rank is needed."
        raise InputError(message) from error
    if not processes:
        raise InputError(
            f"Process {pid} is neither torchrun nor a rank (no process around it that this user may look at has RANK "
            "in its environment, or a connection to another); the pid of torchrun or of a rank is needed."
        )
    activity, by_number = movement.Activity(LISTEN), {}
    activity.note(processes)
    time.sleep(LISTEN)
    activity.note(processes)
    for number, process in sorted(processes.items()):
        rank = by_number[number] = Rank(number, process.pid, activity.state_of(number, process))
        if rank.running:
            ranks.look(rank, process)
    if server:
        debug_server.read(by_number, server)
    sizes = [environment(process).get("WORLD_SIZE", "") for process in processes.values()]
    world_size = max([len(processes), *(int(size) for size in sizes if size.isdigit())])
    return Job(by_number, world_size, "now")


def _ranks_around(process: psutil.Process) -> dict[int, psutil.Process]:
    """{rank: process} of the job around a process; {} if there is none.

    By their environment: the ranks below its launcher; else, if it has RANK itself, those with the same MASTER_ADDR and
    MASTER_PORT. If that gives fewer than two, by their connections: the first rank, the process or its parent, each
    with its descendants. Raises InputError if the ranks below the launcher have several parents.
    """
    own = environment(process)
    launcher = process
    while launcher.pid != 1 and "LOCAL_RANK" in environment(launcher):
        launcher = launcher.parent()
    descendants = [] if launcher.pid == 1 else launcher.children(recursive=True)
    processes = ranks.by_environment(descendants)
    launchers = sorted({each.ppid() for each in processes.values()})
    if len(launchers) > 1:
        raise InputError(f"Process {process.pid} has several jobs; attach to one of {', '.join(map(str, launchers))}.")
    if not processes and "RANK" in own:  # started by hand
        address, everything = _store_address(own), psutil.process_iter()
        processes = ranks.by_environment(each for each in everything if _store_address(environment(each)) == address)
    if len(processes) > 1:
        return processes
    for root in (next(iter(processes.values()), process), process, process.parent()):
        if root is not None and root.pid != 1:
            connected = ranks.by_connections([root, *root.children(recursive=True)])
            if len(connected) > 1:
                return connected
    return processes


def _store_address(variables: dict[str, str]) -> tuple[str | None, str | None]:
    return variables.get("MASTER_ADDR"), variables.get("MASTER_PORT")
