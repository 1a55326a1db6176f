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
clock, start = FairClock(), time.monotonic()
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


def test_waiting_for_a_core_does_not_count(busy_machine):
    wall, seconds, still = clock_of(SPIN)
    assert seconds < 0.75 * wall
    assert still == 0


def test_a_wait_is_a_wait_on_a_busy_machine(busy_machine):
    wall, seconds, still = clock_of(SLEEP)
    assert still == seconds > wall - 0.6
