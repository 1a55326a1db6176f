"""`attach` finds a job's ranks, reads their stacks, names the rank to blame, and leaves the job running."""

import contextlib
import os
import socket
import subprocess
import sys
import time
import uuid

import psutil
import pytest
from ddp_doctor import stacks
from ddp_doctor.attach import look_at_job
from ddp_doctor.diagnosis import diagnose
from ddp_doctor.errors import InputError
from ddp_doctor.launch.supervise import RUN_VARIABLE, sweep, tagged
from ddp_doctor.page import page
from ddp_doctor.ranks import by_environment

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
HANGS = """
import signal, sys
from pathlib import Path
import torch, torch.distributed as dist

def evaluate():
    dist.all_reduce(torch.ones(4))  # HERE

if __name__ == "__main__":  # the debug server may import this file
    from torch.distributed.debug import start_debug_server
    start_debug_server(int(sys.argv[2]))
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(4))
    Path(sys.argv[1], f"rank_{dist.get_rank()}").touch()
    if dist.get_rank() == 0:
        evaluate()
    else:
        signal.pause()
"""


@contextlib.contextmanager
def hanging_job(folder):
    """Starts HANGS on two ranks and waits until they hang; ends them after the block.

    Yields torchrun's process, the job's tag, and the address of torch's debug server, which rank 0 has started.
    """
    reserved = socket.socket()  # until the end: so nobody else is given its port before the server listens there
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    port = reserved.getsockname()[1]
    script, tag = folder / "hangs.py", uuid.uuid4().hex
    script.write_text(HANGS)
    environment = {**os.environ, RUN_VARIABLE: tag, "OMP_NUM_THREADS": "1"}
    job = subprocess.Popen([*TORCHRUN, str(script), str(folder), str(port)], env=environment)
    try:
        while not (folder / "rank_0").exists() or not (folder / "rank_1").exists():
            assert job.poll() is None
            time.sleep(0.05)
        yield job, tag, f"http://localhost:{port}"
    finally:
        sweep(tag, grace=0)
        job.wait()
        reserved.close()


def look_until_still(pid, looks=30):
    """Looks up to `looks` times, until the verdict is not "running"; returns the job and the verdict.

    On a busy machine a rank still works, reading files, on its way into the call where it will wait.
    """
    for _ in range(looks):
        snapshot = look_at_job(pid)
        verdict = diagnose(snapshot)
        if verdict.kind != "running":
            break
    return snapshot, verdict


def test_a_job_that_hangs_now(tmp_path):
    with hanging_job(tmp_path) as (job, tag, server):
        ranks = by_environment(tagged(tag))
        for pid in (job.pid, ranks[1].pid):
            snapshot, verdict = look_until_still(pid)
            text = page(snapshot, verdict)
            assert sorted(snapshot.ranks) == [0, 1]
            assert verdict.ranks == (1,) and "all-reduce" in verdict.sentence, text
            assert "hangs.py:7 (called from" in verdict.sentence and "under `if dist.get_rank() == 0`" in text
            assert "`signal.pause()` at" in verdict.sentence
            assert "not known from outside, without --debug-server" in text
        with pytest.raises(InputError, match="does not answer as torch's debug server does"):
            look_at_job(job.pid, f"{server}/nowhere")
        snapshot = look_at_job(job.pid, server)
        verdict = diagnose(snapshot)
        text = page(snapshot, verdict)
        assert verdict.ranks == (1,) and all(f"all-reduce {number}, [4] float32" in text for number in (1, 2)), text
        ranks[1].suspend()
        while ranks[1].status() != psutil.STATUS_STOPPED:  # a signal is sent before it has come
            time.sleep(0.05)
        verdict = diagnose(look_at_job(job.pid))
        assert verdict.kind == "stopped" and verdict.ranks == (1,)
        ranks[1].resume()
        assert all(process.is_running() for process in ranks.values()), "the doctor only looks"


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("Error: Permission Denied: Try running again with elevated permissions", "may not read process 7"),
        ("Error: Failed to find python version", "could not read process 7: Error: Failed to find python version"),
    ],
)
def test_a_stack_that_py_spy_cannot_read_is_a_sentence(tmp_path, monkeypatch, message, says):
    refuses = tmp_path / "py-spy"
    refuses.write_text(f"#!/bin/sh\necho '{message}' >&2\nexit 1\n")
    refuses.chmod(0o755)
    monkeypatch.setattr(stacks, "py_spy", lambda: str(refuses))
    stack = stacks.stack_of(7)
    assert stack.frames == () and says in stack.problem and len(stack.problem.splitlines()) == 1


def test_the_stack_of_a_process_that_is_gone():
    process = psutil.Popen([sys.executable, "-c", ""])
    process.wait()
    assert stacks.stack_of(process.pid).problem


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the environment is there at once")
def test_a_rank_that_is_just_starting_is_found():
    for _ in range(100):
        with subprocess.Popen(["sleep", "99"], env={"RANK": "0", "WORLD_SIZE": "1"}) as rank:
            found = by_environment([psutil.Process(rank.pid)])
            rank.kill()
        assert found


STEPS = """
import os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
import torch.multiprocessing as mp

def train(rank, folder, store):
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    dist.all_reduce(torch.ones(4))
    Path(folder, f"rank_{rank}").touch()
    while True:
        if rank == 0 or sys.argv[3] == "works":
            dist.all_reduce(torch.ones(4))
        time.sleep(0.2 if sys.argv[3] == "works" else 1000)

if __name__ == "__main__":
    if sys.argv[2] == "spawn":
        mp.spawn(train, args=(sys.argv[1], f"file://{sys.argv[1]}/store"), nprocs=2)
    train(int(os.environ["RANK"]), sys.argv[1], f"file://{sys.argv[1]}/store")
"""


@pytest.mark.parametrize("start", ["spawn", "by hand"])
def test_ranks_without_torchrun(tmp_path, start):
    script, tag = tmp_path / "steps.py", uuid.uuid4().hex
    script.write_text(STEPS)
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": tag, "WORLD_SIZE": "2", RUN_VARIABLE: tag}
    jobs = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path), start, "works" if start == "spawn" else "hangs"],
            env={**os.environ, **variables, "OMP_NUM_THREADS": "1"} | ({"RANK": str(rank)} if start != "spawn" else {}),
        )
        for rank in range(1 if start == "spawn" else 2)
    ]
    try:
        while not all((tmp_path / f"rank_{rank}").exists() for rank in range(2)):
            assert all(job.poll() is None for job in jobs)
            time.sleep(0.05)
        snapshot, verdict = look_until_still(jobs[0].pid, looks=1 if start == "spawn" else 30)
        assert sorted(snapshot.ranks) == [0, 1] and snapshot.world_size == 2
        expected = ("running", ()) if start == "spawn" else ("missing", (1,))
        assert (verdict.kind, verdict.ranks) == expected, page(snapshot, verdict)
    finally:
        sweep(tag, grace=0)
        for job in jobs:
            job.wait()
