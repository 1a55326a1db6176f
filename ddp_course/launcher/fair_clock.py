"""A clock for time limits that leaves out waits for a core, so that a correct answer passes on a busy machine, too."""

import time
from pathlib import Path
from typing import NamedTuple

import psutil

SAMPLE_INTERVAL = 0.5  # seconds between two samples of the processes' times; shorter ones cost too much
LEAST_SHARE = 0.08  # of one core: processes that use less are waiting, which takes a little processor time as well
WAKE = 1e-4  # seconds that a thread runs at most, each time, which only looks whether a message has come: see below
TICK = 0.01  # seconds: Linux counts processor time in these, so a waiting process is charged with one now and then


class ThreadTimes(NamedTuple):
    """The times of a thread so far; the defaults are those of a thread that has just started.

    ran, waited   seconds on a core, and of waiting for a core
    runs          how often it got a core
    queued        whether it is now on a core, or waits for one or for a disk
    """

    ran: float = 0.0
    waited: float = 0.0
    runs: int = 0
    queued: bool = False


class FairClock:
    """Counts the seconds in which the descendants of a process computed or waited for anything but a core or a disk.

    Linux keeps each thread's time of waiting for a core. On other systems, and on a machine without other work, this
    is an ordinary clock. Two processes that computed for 3 s each, at a load of 26 on two cores, took 64 s on the wall;
    this clock counted 2 to 3 s. A limit on processor time (RLIMIT_CPU) is as independent of the load, but never ends a
    process that waits.

    parent         the id of that process; default: this one
    seconds        counted so far
    idle_seconds   counted since any of the processes last computed
    """

    def __init__(self, sample_interval: float = SAMPLE_INTERVAL, parent: int | None = None) -> None:
        self.sample_interval, self.parent = sample_interval, parent
        self.seconds = self.idle_seconds = 0.0
        self.cores = psutil.cpu_count() or 1
        self.sampled_at = time.monotonic()
        self.used, self.threads = _processor_seconds(parent)
        self.read_at = time.monotonic()

    def update(self) -> None:
        """Bring `seconds` and `idle_seconds` up to date; to be called often."""
        now = time.monotonic()
        elapsed = now - self.sampled_at
        if elapsed < self.sample_interval:
            return
        # What was computed while the last sample was read, for long on a busy machine, may have been in it already.
        unread = now - self.read_at
        used, threads = _processor_seconds(self.parent)
        computed = [seconds - self.used.get(process, 0.0) for process, seconds in used.items()]
        changes = [(self.threads.get(thread, ThreadTimes()), times) for thread, times in threads.items()]
        waited = sum(_waited(*change, elapsed) for change in changes)
        longer_runs = sum(_computed(*change) for change in changes)
        self.sampled_at, self.read_at = now, time.monotonic()
        self.used, self.threads = used, threads
        counted = max(0.0, elapsed - waited)  # too little if threads waited while others computed: see below
        # On a busy machine `counted` is small, and so is what processes can compute. But gloo's threads, which look a
        # hundred times a second whether a message has come, get almost as much as on an idle one: 0.03 ms each time.
        least = LEAST_SHARE * min(counted, unread)
        computing = sum(computed) >= LEAST_SHARE * unread or longer_runs >= max(least, 1.5 * TICK)
        if computing:
            # On an idle machine: the time of the longest one, or of all of them spread evenly over the cores.
            counted = min(elapsed, max(*computed, sum(computed) / self.cores, counted))
        self.seconds += counted
        self.idle_seconds = 0.0 if computing else self.idle_seconds + counted


def _waited(previous: ThreadTimes, times: ThreadTimes, elapsed: float) -> float:
    """For how many of the `elapsed` seconds a thread waited for a core or a disk.

    previous, times: those at the beginning and at the end. Linux adds a wait for a core to them only when it has ended,
    and a wait for a disk never.
    """
    if times.queued and (times.ran, times.waited) == (previous.ran, previous.waited):
        return elapsed
    return times.waited - previous.waited


def _computed(previous: ThreadTimes, times: ThreadTimes) -> float:
    """For how many seconds a thread was on a core, 0 if it only looked whether a message has come."""
    ran = times.ran - previous.ran
    return ran if ran > WAKE * (times.runs - previous.runs) else 0.0


def _processor_seconds(parent: int | None) -> tuple[dict[tuple[int, float], float], dict[tuple[int, str], ThreadTimes]]:
    """Read the times of all descendants of the process `parent`; None is this process.

    Returns {(pid, start time): seconds of processor time} and, on Linux, {(pid, thread id): times}.
    """
    used, threads = {}, {}
    for process in psutil.Process(parent).children(recursive=True):
        try:
            times = process.cpu_times()
            used[process.pid, process.create_time()] = times.user + times.system
            for thread in Path(f"/proc/{process.pid}/task").glob("*"):
                ran, waited, runs = map(int, (thread / "schedstat").read_text().split())
                state = (thread / "stat").read_text().rpartition(") ")[2][0]
                threads[process.pid, thread.name] = ThreadTimes(ran / 1e9, waited / 1e9, runs, state in "RD")
        except (psutil.Error, OSError, ValueError, IndexError):
            continue  # ended meanwhile
    return used, threads
