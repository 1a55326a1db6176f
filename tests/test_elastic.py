"""Nodes that come and go: one torchrun each, on this machine."""

import json
import socket
import time
from pathlib import Path

import pytest
from ddp_doctor.launch.supervise import tagged
from training_runs import arguments, metrics, train

from ddp_course.launcher import Nodes, RunFailed, nodes
from ddp_course.launcher.nodes import GIVEN_TO_NOBODY, JOB_VARIABLE, free_port

STEPS, JOIN, LEAVE = 30, 8, 16
# The trainer; alone it waits in one step for a second node, and of two, node b's torchrun gets SIGTERM in another.
COMES_AND_GOES = f"""
import os, signal, time
from ddp_course import minigpt_ddp

step, clip = minigpt_ddp.set_learning_rate, minigpt_ddp.clip_grad_norm_
count = []

def counted(*arguments):
    size, lane = int(os.environ["WORLD_SIZE"]), os.environ["NODE"]
    count.append(1)
    if size == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and len(count) == {JOIN}:
        handler, told = signal.getsignal(signal.SIGTERM), []
        signal.signal(signal.SIGTERM, lambda *both: told.append(handler(*both)))
        while not told:
            time.sleep(0.05)
    if size == 2 and lane == "b" and len(count) == {LEAVE - JOIN}:
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(0.5)
    return clip(*arguments)

minigpt_ddp.clip_grad_norm_ = counted
minigpt_ddp.run(minigpt_ddp.train, minigpt_ddp.PRESETS)
"""


def test_the_trainer_goes_on_when_a_node_joins_and_when_it_leaves(tmp_path):
    """No step is lost or done twice, and the losses are those of a run that always had two ranks."""
    flags = ("--steps", STEPS, "--checkpoint-every", 0, "--timeout-seconds", 60)
    train(tmp_path / "whole", *flags)
    run_dir, script = tmp_path / "run", tmp_path / "comes_and_goes.py"
    script.write_text(COMES_AND_GOES)
    with Nodes(script, *arguments(run_dir, *flags, "--resume", "auto"), env={"OMP_NUM_THREADS": 1}) as job:
        job.start("a")
        job.start("b", when=(run_dir / "metrics.jsonl").exists)
        runs = job.ended()
    assert (runs["a"].exit_code, runs["b"].exit_code) == (0, 1), runs["a"].launcher_lines
    lines = runs["a"].lines[0] + runs["b"].lines[0]
    sizes = [line.split(" = ")[1][0] for line in lines if "tokens per update" in line]
    assert sorted(sizes) == ["1", "1", "2"]
    assert sum("received SIGTERM" in line for line in lines) == 2  # once to a, by its torchrun, and once to b
    logged = [json.loads(line)["step"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert sorted(set(logged)) == list(range(1, STEPS + 1))
    ours, whole = metrics(run_dir), metrics(tmp_path / "whole")
    assert max(abs(ours[step] - whole[step]) for step in whole) < 1e-3


def test_a_node_that_dies_takes_nothing_else_with_it(tmp_path):
    """kill() ends all of one node, and leaving the block what is left; a node is started when it is time."""
    script = tmp_path / "waits.py"
    script.write_text(
        "import os, pathlib, time\n"
        f"pathlib.Path({str(tmp_path)!r}, os.environ['NODE'] + ' of ' + os.environ['WORLD_SIZE']).touch()\n"
        "time.sleep(600)\n"
    )
    begin = time.monotonic()
    with Nodes(script) as job:
        job.start("a")
        job.start("b", when=(tmp_path / "a of 1").exists)
        job.until(lambda: (tmp_path / "a of 2").exists() and (tmp_path / "b of 2").exists())
        job.kill("b")
        with pytest.raises(RunFailed, match="node b ended too early, with exit code -9"):
            job.until(lambda: False)
        ended = [name for name, future in job._futures.items() if future.done()]
        tag = job._tag
    assert ended == ["b"] and job.ended()["b"].exit_code == -9
    assert not tagged(tag, JOB_VARIABLE) and time.monotonic() - begin < 300


def test_a_second_node_is_not_started_where_the_first_has_ended(tmp_path):
    script = tmp_path / "ends.py"
    script.write_text("raise SystemExit('as it should')")
    with Nodes(script) as job:
        job.start("a")
        with pytest.raises(RunFailed, match="(?s)node a ended too early, with exit code 1.*exitcode"):
            job.start("b", when=lambda: False)
        assert list(job.ended()) == ["a"]


def test_a_port_is_free_and_none_that_the_system_gives_away():
    port = free_port()
    with socket.create_server(("localhost", port)), pytest.raises(OSError):
        socket.create_server(("localhost", port))
    path = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(path.read_text().split()[0]) if path.exists() else 49152
    assert port in GIVEN_TO_NOBODY and GIVEN_TO_NOBODY.stop <= first


def test_a_port_that_is_taken_is_passed_over(monkeypatch):
    with socket.create_server(("localhost", free_port())) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(nodes, "GIVEN_TO_NOBODY", range(port, port + 1))
        with pytest.raises(OSError, match=f"no port from {port} to {port} is free"):
            free_port()
