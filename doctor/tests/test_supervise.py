"""On a busy machine, too, no process is left, each gets its time to end, and errors keep their order."""

import itertools
import os
import signal
import subprocess
import sys
import time
import uuid
from types import SimpleNamespace

import psutil
import pytest
from ddp_doctor.launch import supervise
from ddp_doctor.launch.rank_output import RankOutput
from ddp_doctor.launch.supervised import Run


@pytest.fixture
def tagged_process():
    """Starts a Python process that runs the code after it has printed a line; yields it and its tag."""
    started = []

    def start(code):
        tag = uuid.uuid4().hex
        command = [sys.executable, "-c", f"import signal, sys, time\n{code}"]
        environment = {**os.environ, supervise.RUN_VARIABLE: tag}
        started.append(subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert started[-1].stdout.readline() == b"ready\n"
        return started[-1], tag

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_what_ignores_sigterm_is_killed_though_all_time_passes_at_once(tagged_process, monkeypatch):
    process, tag = tagged_process("signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)")
    clock = itertools.count(0, 20)  # between any two looks at it
    stand_in = SimpleNamespace(monotonic=lambda: next(clock), time=time.time, sleep=lambda _: None)
    monkeypatch.setattr(supervise, "time", stand_in)
    assert len(supervise.sweep(tag, grace=3)) == 1
    assert process.wait() == -signal.SIGKILL


def test_the_grace_begins_with_sigterm_not_with_the_search(tagged_process, monkeypatch):
    """Here a search takes 10 s, and the process ends in the second pause after SIGTERM, when it is told to."""
    code = "signal.signal(15, lambda *_: sys.exit(7 if sys.stdin.read() == 'end' else 8))"
    process, tag = tagged_process(f"{code}; print('ready', flush=True); time.sleep(600)")
    now, pauses = [0.0], itertools.count(1)

    def search(*_):
        now[0] += 10
        return [psutil.Process(process.pid)] if process.poll() is None else []

    def pause(seconds):
        now[0] += seconds
        if next(pauses) == 2:
            process.communicate(b"end")

    stand_in = SimpleNamespace(monotonic=lambda: now[0], time=time.time, sleep=pause)
    monkeypatch.setattr(supervise, "tagged", search)
    monkeypatch.setattr(supervise, "time", stand_in)
    supervise.sweep(tag, grace=5)
    assert process.wait() == 7


def test_the_first_traceback_is_the_one_written_first_though_both_are_read_at_once(tmp_path):
    output = RankOutput(tmp_path, Run("", {0: [], 1: []}, {}), quiet=True)
    for rank, written in enumerate((2000, 1000)):
        path = tmp_path / f"ranks/run/attempt_0/{rank}/stderr.log"
        path.parent.mkdir(parents=True)
        path.write_text("Traceback (most recent call last):\nValueError: x\n")
        os.utime(path, (written, written))
    output.finish()
    assert output.first_traceback[1] < output.first_traceback[0]
