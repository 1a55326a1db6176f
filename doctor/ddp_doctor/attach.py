"""Looks at a job that runs now, from outside, without changing it: the stacks of all its ranks on this machine."""

import time

import psutil

from ddp_doctor import debug_server, movement, ranks
from ddp_doctor.errors import InputError
from ddp_doctor.job import Job, Rank

LISTEN = 2.0  # seconds over which CPU time and bytes are counted


def look_at_job(pid: int, server: str | None = None) -> Job:
    """The job that process `pid` belongs to: torchrun, one of its ranks, or what a rank has started; also the parent of
    ranks that were started by `multiprocessing`, or one of several that were started by hand.

    server: address of torch's debug server, which knows the collectives that each rank has started.
    Raises InputError if there is no such process, none of the family is a rank, or no server answers.
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
    earlier = _usages(processes)
    time.sleep(LISTEN)
    now, looked_at = _usages(processes), {}
    for number, process in sorted(processes.items()):
        state = movement.state_of(process, now[number], earlier[number], LISTEN)
        rank = looked_at[number] = Rank(number, process.pid, state)
        if rank.running:
            ranks.look(rank, process)
    if server:
        debug_server.read(looked_at, server)
    return Job(looked_at, _world_size(processes), "now")


def _ranks_around(process: psutil.Process) -> dict[int, psutil.Process]:
    environment = _environment(process)
    launcher = process
    while launcher.pid != 1 and "LOCAL_RANK" in _environment(launcher):
        launcher = launcher.parent()
    family = [] if launcher.pid == 1 else launcher.children(recursive=True)
    processes = ranks.by_environment(family)
    launchers = sorted({each.ppid() for each in processes.values()})
    if len(launchers) > 1:
        raise InputError(f"Process {process.pid} has several jobs; attach to one of {', '.join(map(str, launchers))}.")
    if not processes and "RANK" in environment:  # started by hand: they have the store's port in common
        everybody = [(each, _environment(each)) for each in psutil.process_iter()]
        names = ("MASTER_ADDR", "MASTER_PORT")
        processes = ranks.by_environment(
            each for each, own in everybody if all(own.get(name) == environment.get(name) for name in names)
        )
    if len(processes) > 1:
        return processes
    parent = process.parent()
    for around in (next(iter(processes.values()), process), process, parent):
        if around is not None and around.pid != 1:
            connected = ranks.by_connections([around, *around.children(recursive=True)])
            if len(connected) > 1:
                return connected
    return processes


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


def _usages(processes) -> dict[int, movement.Usage]:
    connections = movement.bytes_by_connection(movement.store_ports(processes.values()))
    return {number: movement.usage(process, connections) for number, process in processes.items()}


def _world_size(processes) -> int:
    sizes = [_environment(process).get("WORLD_SIZE", "") for process in processes.values()]
    return max([len(processes), *(int(size) for size in sizes if size.isdigit())])
