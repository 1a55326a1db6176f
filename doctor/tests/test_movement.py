"""Transfers and waits of a process, seen from outside: connections, pipes, children."""

import os
import socket
import subprocess
import sys
import time

import psutil
import pytest
from ddp_doctor import movement
from ddp_doctor.launch.rank_output import RankOutput
from ddp_doctor.launch.supervised import Run
from ddp_doctor.stacks import Stack, wake_time
from ddp_doctor.watch import Watch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bytes and system calls are known on Linux only")


@pytest.fixture
def process():
    """A Python process that runs the code it is sent."""
    code = "import os, socket, subprocess, sys, time\nfor line in sys.stdin: exec(line); print('done', flush=True)"
    running = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield running
    for child in psutil.Process(running.pid).children():
        child.kill()  # one that is left would hold the pipe open
    running.kill()
    running.communicate()


def execute(process, code):
    process.stdin.write(code + "\n")
    process.stdin.flush()


def what_it_waits_for(process, expected=""):
    """Polls `waits_for` until its text has `expected` in it, and returns the text; None after five minutes.

    A child that has just been started has no command line for a moment.
    """
    for _ in range(6000):
        text = movement.waits_for(psutil.Process(process.pid), in_subprocess=False)
        if text and expected in text:
            return text
        time.sleep(0.05)


def test_bytes_of_a_connection_are_counted_and_its_other_end_is_named(process):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        execute(process, f"c = socket.create_connection(('127.0.0.1', {port})); c.recv(9); c.recv(9)")
        connection, _ = server.accept()
        with connection:
            earlier = movement.usage(psutil.Process(process.pid), movement.bytes_by_connection(set()))
            connection.sendall(b"bytes")
            for _ in range(6000):
                now = movement.usage(psutil.Process(process.pid), movement.bytes_by_connection(set()))
                if now.transferred > earlier.transferred:
                    break
                time.sleep(0.05)
            assert now.transferred == earlier.transferred + 5
            # on a busy machine it runs for a while before it waits
            assert what_it_waits_for(process) == f"data from 127.0.0.1:{port}"
            assert movement.state_of(psutil.Process(process.pid), now, earlier, 1e6) == "transferring"
            assert movement.state_of(psutil.Process(process.pid), now, now, 1e6) == "waiting"
            name = f"socket:[{os.fstat(connection.fileno()).st_ino}]"
            assert name not in movement.bytes_by_connection({port})


def test_a_process_that_ends_while_its_files_are_listed_has_none(monkeypatch):
    sleeper = subprocess.Popen(["sleep", "600"])

    def ended_just_before(list_folder):
        def call(path="."):
            if str(path) == f"/proc/{sleeper.pid}/fd":
                sleeper.kill()
                sleeper.wait()
            return list_folder(path)

        return call

    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, ended_just_before(getattr(os, name)))
    assert movement._links(sleeper.pid) == []
    assert sleeper.returncode is not None


def test_a_process_that_waits_for_its_child(process):
    execute(process, "subprocess.run(['sleep', '600'])")
    assert what_it_waits_for(process, "`sleep 600`")
    psutil.Process(process.pid).children()[0].kill()
    assert process.stdout.readline() == "done\n"


def test_the_cpu_time_of_a_child_counts_when_it_has_ended(process):
    """Else a rank that starts one program after another would seem to do nothing, or less than nothing."""
    busy = "import time\nwhile time.process_time() < 0.2: pass\ninput()"
    execute(process, f"c = subprocess.Popen([sys.executable, '-c', {busy!r}], stdin=subprocess.PIPE)")
    rank = psutil.Process(process.pid)
    while (earlier := movement.usage(rank, {}).cpu) < 0.2:
        time.sleep(0.05)
    execute(process, "c.communicate(b'x')")
    assert [process.stdout.readline() for _ in range(2)] == ["done\n"] * 2
    now = movement.usage(rank, {}).cpu
    assert round(now, 9) >= round(earlier, 9), "the same ticks, added in another order, can differ by 1e-17"


def test_a_process_that_waits_for_a_pipe(process):
    execute(process, "os.read(os.pipe()[0], 1)")
    assert what_it_waits_for(process) == "data from a pipe"


def test_a_sleeping_main_thread_is_waiting_though_another_thread_writes(process):
    write = "lambda: [os.write(2, b'.') for _ in iter(lambda: time.sleep(0.1), 1)]"
    execute(process, f"import threading; threading.Thread(target={write}).start(); time.sleep(600)")
    sleeper = psutil.Process(process.pid)
    for _ in range(300):  # on a busy machine it runs for a while before it sleeps
        earlier = movement.usage(sleeper, {})
        time.sleep(1)
        state = movement.state_of(sleeper, movement.usage(sleeper, {}), earlier, 1.0)
        if state == "waiting":
            break
    assert state == "waiting"


def test_a_job_does_not_stand_still_if_a_rank_ends_during_the_look(process, tmp_path, monkeypatch):
    """Its record is older than the others' stacks: together they show a state that the job never had.

    The search for missing ranks takes longer than `idle` here, as on a busy machine.
    """
    monkeypatch.setattr("ddp_doctor.watch.tagged", lambda tag: time.sleep(1) or [])
    output = RankOutput(tmp_path, Run("", {0: [], 1: []}, {}), quiet=True)
    watch = Watch(tmp_path, "no process has this", output, 0.5, None, end_after=0.0, report=lambda job: None)
    execute(process, "")
    assert process.stdout.readline() == "done\n"
    with subprocess.Popen(["sleep", "600"]) as other:
        watch.processes = {0: psutil.Process(process.pid), 1: psutil.Process(other.pid)}
        look_at_all = watch._look_at_all

        def look_while_it_ends(ended):
            look_at_all(ended)
            other.kill()
            other.wait()
            watch.next_search = 0.0

        watch._look_at_all = look_while_it_ends
        decisions = []
        while watch.job.ended == "time":  # as long as it has not looked
            decisions.append(watch.should_end())
            time.sleep(0.1)
    assert not any(decisions)


def test_a_job_does_not_stand_still_if_a_rank_goes_on_during_the_look(process, tmp_path):
    output = RankOutput(tmp_path, Run("", {0: []}, {}), quiet=True)
    watch = Watch(tmp_path, "no process has this", output, 0.5, None, end_after=0.0, report=lambda job: None)
    execute(process, "")
    assert process.stdout.readline() == "done\n"
    look_at_all = watch._look_at_all

    def look_while_it_goes_on(ended):
        look_at_all(ended)
        if watch.job.ranks[0].state == "waiting":
            watch._look_at_all = look_at_all
            execute(process, "while True: pass")
            while psutil.Process(process.pid).cpu_times().user < watch.activity.used[-1][1][0].cpu + 0.5:
                time.sleep(0.05)

    watch.processes, watch.next_search = {0: psutil.Process(process.pid)}, float("inf")
    watch._look_at_all = look_while_it_goes_on
    decisions = []
    while watch._look_at_all == look_while_it_goes_on:  # as long as it has not seen it wait
        decisions.append(watch.should_end())
        time.sleep(0.1)
    assert not any(decisions)


@pytest.fixture
def watch(tmp_path, monkeypatch):
    """A Watch of one rank that has not looked yet. It will find a process that sleeps."""
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "1"}
    sleeper = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    monkeypatch.setattr("ddp_doctor.watch.tagged", lambda tag: [psutil.Process(sleeper.pid)])
    output = RankOutput(tmp_path, Run("", {0: []}, {}), quiet=True)
    yield Watch(tmp_path, "", output, 0.5, None, end_after=None, report=lambda job: None)
    sleeper.kill()
    sleeper.communicate()


def test_an_interrupt_finds_ranks_that_have_started_since_the_last_look(watch):
    watch.interrupted = True
    assert watch.should_end() and watch.job.ranks[0].running


def test_one_sleep_has_one_wake_time_however_long_a_look_takes(watch, monkeypatch):
    monkeypatch.setattr("ddp_doctor.watch.SHORT_SLEEP", 700.0)
    monkeypatch.setattr("ddp_doctor.watch._calls_sleep", lambda rank: True)
    watch._note_progress(1.0)
    watch.activity.note(watch.processes)
    while wake_time(watch.processes[0].pid) is None:
        time.sleep(0.05)
    for lag in (0.0, 0.2, 0.4):
        monkeypatch.setattr("ddp_doctor.stacks.stack_of", lambda *_, lag=lag: time.sleep(lag) or Stack())
        watch._look_at_all("still")
        assert watch._wakes_by_itself()
    assert len(watch.wake_times) == 1
