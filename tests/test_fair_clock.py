"""The grader's clock: it counts what an answer computes and how long it stands still, not what others take from it."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

HARNESS = Path(__file__).parents[1] / "ddp_course/lab/harness"
LOOK = """
import json, os, sys, time
sys.path.insert(0, {harness!r})
from fair_clock import FairClock

child = os.fork()
if child == 0:
    os.nice(5)
    exec({work!r})
    os._exit(0)
start = time.monotonic()
clock = FairClock()
while time.monotonic() - start < 3:
    time.sleep(0.05)
    clock.look()
os.kill(child, 9)
os.wait()
print(json.dumps([time.monotonic() - start, clock.seconds, clock.still]))
"""
SPIN = "while True: pass"
SLEEP = "import time; time.sleep(60)"


def clock_of(work):
    """(seconds on the wall, seconds, still) of a clock over a process that does `work`."""
    script = LOOK.format(harness=str(HARNESS), work=work)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


@pytest.fixture
def busy_machine():
    """Other programs on every core, more than the one that is watched can stand up to."""
    others = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(2 * psutil.cpu_count())]
    yield
    for other in others:
        other.kill()
        other.wait()


def test_waiting_counts_in_full():
    wall, seconds, still = clock_of(SLEEP)
    assert wall - 0.6 < seconds <= wall
    assert still == seconds


def test_computing_is_not_standing_still():
    _, seconds, still = clock_of(SPIN)
    assert seconds > 0.5 and still == 0


def clock_after(monkeypatch, seconds_a_second, cores=2):
    """A clock after ten seconds, in each of which process n got seconds_a_second[n] seconds of a core."""
    monkeypatch.syspath_prepend(HARNESS)
    import fair_clock

    now = 0.0
    monkeypatch.setattr(fair_clock.time, "monotonic", lambda: now)
    monkeypatch.setattr(fair_clock.psutil, "cpu_count", lambda: cores)
    monkeypatch.setattr(fair_clock, "_processor_seconds", lambda: {n: now * s for n, s in enumerate(seconds_a_second)})
    clock = fair_clock.FairClock()
    for _ in range(10):
        now += 1.0
        clock.look()
    return clock


@pytest.mark.parametrize(
    ("seconds_a_second", "seconds"),
    [
        ([1.0], 10.0),  # a core to itself
        ([0.4], 4.0),  # less than half of one
        ([0.5] * 4, 10.0),  # four that share two cores, which they have to themselves
        ([0.2] * 4, 4.0),  # the same four, while others take most of the cores
        ([0.6, 0.1], 6.0),  # the longest counts
        ([0.1], 2.5),  # nearly nothing: never slower than a quarter
    ],
)
def test_waiting_for_a_core_does_not_count(monkeypatch, seconds_a_second, seconds):
    clock = clock_after(monkeypatch, seconds_a_second)
    assert clock.seconds == pytest.approx(seconds)
    assert clock.still == 0.0


def test_hardly_computing_is_standing_still(monkeypatch):
    clock = clock_after(monkeypatch, [0.01, 0.01])
    assert clock.seconds == clock.still == pytest.approx(10.0)


def test_a_wait_is_a_wait_on_a_busy_machine(busy_machine):
    wall, seconds, still = clock_of(SLEEP)
    assert still == seconds > wall - 0.6
