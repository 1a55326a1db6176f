"""What a process transfers and what it waits for, seen from outside: connections, pipes, children."""

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
    """Polls `waits_for` until its text has `expected` in it, and returns the text; None after ten seconds.

    A child that has just been started has no command line for a moment.
    """
    for _ in range(200):
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
            for _ in range(200):
                now = movement.usage(psutil.Process(process.pid), movement.bytes_by_connection(set()))
                if now.transferred > earlier.transferred:
                    break
                time.sleep(0.05)
            assert now.transferred == earlier.transferred + 5
            # on a busy machine it runs for a while before it waits
            assert what_it_waits_for(process) == f"data from 127.0.0.1:{port}"
            assert movement.state_of(psutil.Process(process.pid), now, earlier, 1e6) == "transferring"
            assert movement.state_of(psutil.Process(process.pid), now, now, 1e6) == "waiting"
            assert not movement.bytes_by_connection({port}).keys() & {
                f"socket:[{os.fstat(connection.fileno()).st_ino}]"
            }


def test_a_process_that_waits_for_its_child(process):
    execute(process, "subprocess.run(['sleep', '600'])")
    assert what_it_waits_for(process, "`sleep 600`")
    psutil.Process(process.pid).children()[0].kill()
    assert process.stdout.readline() == "done\n"


def test_a_process_that_waits_for_a_pipe(process):
    execute(process, "os.read(os.pipe()[0], 1)")
    assert what_it_waits_for(process) == "data from a pipe"


def test_a_sleeping_main_thread_is_waiting_though_another_thread_writes(process):
    write = "lambda: [os.write(2, b'.') for _ in iter(lambda: time.sleep(0.1), 1)]"
    execute(process, f"import threading; threading.Thread(target={write}).start(); time.sleep(600)")
    sleeper = psutil.Process(process.pid)
    for _ in range(60):  # on a busy machine it runs for a while before it sleeps
        earlier = movement.usage(sleeper, {})
        time.sleep(1)
        state = movement.state_of(sleeper, movement.usage(sleeper, {}), earlier, 1.0)
        if state == "waiting":
            break
    assert state == "waiting"


def test_a_job_does_not_stand_still_if_a_rank_ends_during_the_look(process, tmp_path):
    """Its record is older than the others' stacks: together they show a state that the job never had."""
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

        watch._look_at_all = look_while_it_ends
        decisions = []
        while watch.job.ended == "time":  # as long as it has not looked
            decisions.append(watch.should_end())
            time.sleep(0.1)
    assert not any(decisions)
