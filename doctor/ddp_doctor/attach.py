"""Looks at a job that runs now, from outside, without changing it: the stacks of all its ranks on this machine."""

import time

import psutil

from ddp_doctor import stacks
from ddp_doctor.errors import InputError
from ddp_doctor.seen import Job, Rank
from ddp_doctor.watch import BUSY, cpu_seconds, rank_processes

LISTEN = 2.0  # seconds over which CPU time is counted


def look_at_job(pid: int) -> Job:
    """The job that process `pid` belongs to: torchrun, one of its ranks, or what a rank has started.

    Raises InputError if there is no such process, or none of the family is a rank.
    """
    try:
        launcher = psutil.Process(pid)
        while launcher.pid != 1 and _is_of_a_rank(launcher):
            launcher = launcher.parent()
        processes = {} if launcher.pid == 1 else rank_processes(launcher.children(recursive=True))
    except psutil.Error as error:
        message = f"There is no process {pid} to look at ({error}); the pid of torchrun or of a rank is needed."
        raise InputError(message) from error
    if not processes:
        raise InputError(
            f"Process {pid} is neither torchrun nor a rank (no process around it that this user may look at has RANK "
            "in its environment); the pid of torchrun or of a rank is needed."
        )
    launchers = sorted({one.ppid() for one in processes.values()})
    if len(launchers) > 1:
        raise InputError(f"Process {pid} has several jobs; attach to one of {', '.join(map(str, launchers))}.")
    before = {rank: cpu_seconds(one) for rank, one in processes.items()}
    time.sleep(LISTEN)
    found = {}
    for rank, process in sorted(processes.items()):
        found[rank] = _look(rank, process, before[rank])
    return Job(found, _world_size(processes), "now")


def _is_of_a_rank(process) -> bool:
    """Is it a rank, or started by one? torchrun's environment has no LOCAL_RANK."""
    try:
        return "LOCAL_RANK" in process.environ()
    except psutil.AccessDenied:
        return False


def _look(rank: int, process: psutil.Process, before: float) -> Rank:
    one = Rank(rank, process.pid)
    try:
        status = process.status()
    except psutil.Error:
        return one
    if status == psutil.STATUS_ZOMBIE:
        return one
    if status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
        one.state = "stopped"
    else:
        one.state = "computing" if cpu_seconds(process) - before > BUSY * LISTEN else "waiting"
    one.stack, one.variables, one.stack_problem = stacks.stack_of(process.pid, True, stopped=one.state == "stopped")
    return one


def _world_size(processes) -> int:
    for process in processes.values():
        try:
            return int(process.environ()["WORLD_SIZE"])
        except (psutil.Error, KeyError, ValueError):
            continue
    return len(processes)
