"""The time that an answer has had, fairly counted: a busy machine must not turn a right answer into a wrong one."""

import time

import psutil

EVERY = 0.25  # seconds between two looks at the processes; more often costs more than it tells
LEAST_SHARE = 0.08  # of one core: who computes less waits; the bookkeeping of a wait costs a little too
SLOWEST = 4.0  # the clock never runs slower than this: an answer that looks again and again also comes to an end


class FairClock:
    """Counts the seconds in which the processes below this one computed or stood still.

    Not counted is the time in which they would have computed, had other programs not had the cores. On a machine
    with nothing else to do it is an ordinary clock.

    seconds    so far
    still      seconds since any of the processes last computed
    """

    def __init__(self):
        self.seconds = self.still = 0.0
        self.cores = psutil.cpu_count() or 1
        self.looked, self.used = time.monotonic(), _processor_seconds()

    def look(self):
        """Bring `seconds` and `still` up to date; to be called often."""
        passed = time.monotonic() - self.looked
        if passed < EVERY:
            return
        used = _processor_seconds()
        fresh = [seconds - self.used.get(process, 0.0) for process, seconds in used.items()]
        self.looked, self.used = self.looked + passed, used
        if sum(fresh) < LEAST_SHARE * passed:
            self.seconds += passed
            self.still += passed
        else:
            # As long as it would have taken with the cores to itself: the longest one, or all of them spread evenly.
            self.seconds += min(passed, max(*fresh, sum(fresh) / self.cores, passed / SLOWEST))
            self.still = 0.0


def _processor_seconds():
    """{(pid, start): seconds of processor time} of every process below this one."""
    used = {}
    for process in psutil.Process().children(recursive=True):
        try:
            times = process.cpu_times()
            used[process.pid, process.create_time()] = times.user + times.system
        except psutil.Error:
            continue  # ended meanwhile
    return used
