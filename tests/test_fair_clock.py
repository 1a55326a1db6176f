"""The grader's clock counts the time in which an answer computes or stands still, not the time that others compute."""

import json
import subprocess
import sys

import psutil
import pytest

from ddp_course.launcher import fair_clock

pytestmark = pytest.mark.smoke

LOOK = """
import json, os, psutil, time
from ddp_course.launcher.fair_clock import FairClock

begun, begin = os.pipe()
child = os.fork()
if child == 0:
    os.nice(5)
    os.write(begin, b"x")
    exec({work!r})
    os._exit(0)
os.read(begun, 1)
clock = FairClock()
start = clock.sampled_at
while clock.sampled_at - start < 3:
    time.sleep(0.05)
    clock.update()
for process in psutil.Process().children(recursive=True):
    process.kill()
os.wait()
print(json.dumps([clock.sampled_at - start, clock.seconds, clock.idle_seconds]))
"""
SPIN = "print(flush=True)\nwhile True: pass"
SLEEP = "import time; time.sleep(60)"
STARVE = "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"  # others go first, always


def clocks_of(*works):
    """For each piece of work: (seconds on the wall, seconds, still) of a clock over a process that does it."""
    commands = [[sys.executable, "-c", LOOK.format(work=work)] for work in works]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    return [json.loads(process.communicate(timeout=600)[0]) for process in processes]


@pytest.fixture(scope="module")
def on_a_busy_machine():
    """{work: its clock}, while two other programs for each core compute at a higher priority."""
    command = [sys.executable, "-c", SPIN]
    others = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2 * psutil.cpu_count())]
    try:
        for other in others:
            other.stdout.readline()  # until it computes
        works = [SLEEP, SPIN, *([STARVE] if sys.platform == "linux" else [])]
        return dict(zip(works, clocks_of(*works), strict=True))
    finally:
        for other in others:
            other.kill()
            other.communicate()


def test_waiting_counts_in_full():
    [(wall, seconds, still)] = clocks_of(SLEEP)
    assert wall - 1.2 < seconds <= wall
    assert still == seconds


def test_computing_is_not_standing_still():
    [(_, seconds, still)] = clocks_of(SPIN)
    assert seconds > 0 and still < 1.2


def clock_after(monkeypatch, computed, delayed=(), queued=False, runs=50):
    """A clock after ten seconds on two cores, in each of which process n computed for computed[n] seconds, and thread
    n waited delayed[n] seconds for a core, which it got `runs` times. queued: each look finds the threads in the queue
    for one."""
    now = 0.0
    monkeypatch.setattr(fair_clock.time, "monotonic", lambda: now)
    monkeypatch.setattr(fair_clock.psutil, "cpu_count", lambda: 2)

    def so_far(parent):
        used = {n: now * share for n, share in enumerate(computed)}
        return used, {
            n: fair_clock.ThreadTimes(used[n], now * share, now * runs, queued) for n, share in enumerate(delayed)
        }

    monkeypatch.setattr(fair_clock, "_processor_seconds", so_far)
    clock = fair_clock.FairClock()
    for _ in range(10):
        now += 1.0
        clock.update()
    return clock


@pytest.mark.parametrize(
    ("computed", "delayed", "seconds"),
    [
        ([1.0], [0.0], 10.0),  # a core to itself
        ([0.4], [0.6], 4.0),  # less than half of one
        ([0.4], [0.0], 10.0),  # it sleeps in between, of its own will
        ([0.2], [0.3], 7.0),  # it sleeps, and waits for a core
        ([0.5] * 4, [0.5] * 4, 10.0),  # four that share two cores, which they have to themselves
        ([0.2] * 4, [0.8] * 4, 4.0),  # the same four, while others take most of the cores
        ([0.3, 0.3], [0.2, 0.2], 6.0),  # they take turns
        ([0.6, 0.1], [0.4, 0.9], 6.0),  # the longest counts
        ([0.03], [0.97], 0.3),  # nearly nothing
    ],
)
def test_waiting_for_a_core_does_not_count(monkeypatch, computed, delayed, seconds):
    clock = clock_after(monkeypatch, computed, delayed)
    assert clock.seconds == pytest.approx(seconds)
    assert clock.idle_seconds == 0.0


def test_a_process_that_computes_while_the_clock_cannot_look_does_not_stand_still(monkeypatch):
    """The clock's own process gets no core for 20 s, in the middle of a look. What was computed is in that look."""
    looks, now = 0, 0.0

    def so_far(parent):
        nonlocal looks, now
        looks, now = looks + 1, now + 20 * (looks == 2)
        return {1: now}, {}

    monkeypatch.setattr(fair_clock.time, "monotonic", lambda: now)
    monkeypatch.setattr(fair_clock, "_processor_seconds", so_far)
    clock = fair_clock.FairClock()
    for _ in range(4):
        now += 1.0
        clock.update()
        assert clock.idle_seconds == 0.0
    assert clock.seconds == now


def test_hardly_computing_is_standing_still(monkeypatch):
    clock = clock_after(monkeypatch, [0.01, 0.01], [0.1, 0.0])
    assert clock.seconds == clock.idle_seconds == pytest.approx(9.0)


def test_one_tick_is_not_computing_on_a_busy_machine(monkeypatch):
    """A wait costs less than a tick, yet shows a whole one: a large share of the little time that others leave."""
    clock = clock_after(monkeypatch, [0.01, 0.0], [0.9, 0.0])
    assert clock.seconds == clock.idle_seconds == pytest.approx(1.0)


def test_looking_for_messages_is_not_computing_on_a_busy_machine(monkeypatch):
    """The threads of gloo in four ranks that wait ran 1600 times a second, 0.03 s in all, at a load of 40."""
    clock = clock_after(monkeypatch, [0.03], [0.97], runs=1600)
    assert clock.seconds == clock.idle_seconds == pytest.approx(0.3)


def test_a_wait_that_has_not_ended_does_not_count(monkeypatch):
    """Linux adds the time in the queue for a core to what a thread has waited when the thread gets one, not before."""
    clock = clock_after(monkeypatch, [0.0, 0.0], [0.0, 0.0], queued=True)
    assert clock.seconds == clock.idle_seconds == 0.0


def test_waiting_counts_on_a_busy_machine(on_a_busy_machine):
    wall, seconds, still = on_a_busy_machine[SLEEP]
    assert still == seconds > 0.7 * wall


def test_the_time_of_other_programs_does_not_count(on_a_busy_machine):
    wall, seconds, _ = on_a_busy_machine[SPIN]
    if sys.platform == "linux":
        assert seconds < 0.7 * wall  # it gets a third of a core


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how long a thread waits for a core")
def test_a_process_that_gets_no_core_does_not_stand_still(on_a_busy_machine):
    wall, seconds, still = on_a_busy_machine[STARVE]
    assert still <= seconds < 0.3 * wall


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says what a process waits for")
def test_a_process_that_waits_for_a_disk_does_not_stand_still():
    """A parent waits after vfork, until its child ends, as for a disk: in the state D."""
    [(wall, seconds, still)] = clocks_of("import ctypes, time; ctypes.CDLL(None).vfork(); time.sleep(600); os._exit(0)")
    assert max(seconds, still) < 0.5 * wall
