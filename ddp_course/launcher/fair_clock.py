"""The time that an answer has had, fairly counted: a busy machine must not turn a right answer into a wrong one."""

import time
from pathlib import Path

import psutil

EVERY = 0.5  # seconds between two looks at the processes; more often costs more than it tells
LEAST_SHARE = 0.08  # of one core: who computes less waits; the bookkeeping of a wait costs a little too
TICK = 0.01  # seconds, in which Linux counts processor time: a process that hardly computes shows one now and then


class FairClock:
    """Counts the seconds in which the processes below this one computed or stood still.

    Not counted is the time that they spent waiting for a core, which Linux keeps for each thread, or for a disk:
    whoever saves a file does not stand still. Elsewhere, and on a machine with nothing else to do, it is an ordinary
    clock. Two processes that computed for 3 s each, at a load of 26 on two cores, had 2 to 3 s by it in 64 s on the
    wall. A limit on processor time (RLIMIT_CPU) is as fair to those, but never ends an answer that waits.

    seconds    so far
    still      seconds since any of the processes last computed
    """

    def __init__(self):
        self.seconds = self.still = 0.0
        self.cores = psutil.cpu_count() or 1
        self.looked, self.used, self.threads = time.monotonic(), *_processor_seconds()

    def look(self):
        """Bring `seconds` and `still` up to date; to be called often."""
        passed = time.monotonic() - self.looked
        if passed < EVERY:
            return
        used, threads = _processor_seconds()
        computed = [seconds - self.used.get(process, 0.0) for process, seconds in used.items()]
        delayed = sum(_delay(self.threads.get(thread), now, passed) for thread, now in threads.items())
        self.looked, self.used, self.threads = self.looked + passed, used, threads
        had = max(0.0, passed - delayed)  # by one after the other; by those that compute at once it may be more
        computing = sum(computed) >= max(LEAST_SHARE * (had or passed), 1.5 * TICK)
        if computing:
            # The longest one, or all of them spread evenly, took as long with the cores to themselves.
            had = min(passed, max(*computed, sum(computed) / self.cores, had))
        self.seconds += had
        self.still = 0.0 if computing else self.still + had


def _delay(previous, now, passed):
    """For how many of the `passed` seconds a thread waited for a core or a disk. Linux adds a wait for a core up only
    when it has ended, and one for a disk not here at all."""
    ran, waited, queued = now
    ran_before, waited_before, _ = previous or (0.0, 0.0, False)
    if queued and (ran, waited) == (ran_before, waited_before):
        return passed
    return waited - waited_before


def _processor_seconds():
    """Read the times of all processes below this one.

    Returns {(pid, start): seconds of processor time}, and {(pid, thread): (seconds on a core, seconds of waiting for
    a core, whether it could run now or waits for a disk)}.
    """
    used, threads = {}, {}
    for process in psutil.Process().children(recursive=True):
        try:
            times = process.cpu_times()
            used[process.pid, process.create_time()] = times.user + times.system
            for thread in Path(f"/proc/{process.pid}/task").glob("*"):
                ran, waited, _ = map(int, (thread / "schedstat").read_text().split())
                state = (thread / "stat").read_text().rpartition(") ")[2][0]
                threads[process.pid, thread.name] = ran / 1e9, waited / 1e9, state in "RD"
        except (psutil.Error, OSError, ValueError, IndexError):
            continue  # ended meanwhile
    return used, threads
