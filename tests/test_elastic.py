"""Nodes that join and leave a job: one torchrun each, on this machine. Notebook 13 trains meanwhile."""

import re
import socket
import time
from pathlib import Path

import pytest
from ddp_doctor.launch.supervise import tagged
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc

from ddp_course.launcher import Nodes, RunFailed, nodes
from ddp_course.launcher.nodes import JOB_VARIABLE, NON_EPHEMERAL_PORTS, free_port


def test_killing_a_node_ends_no_other(tmp_path):
    """kill() ends all processes of a node, and the end of the block all others. start() waits for its condition."""
    script = tmp_path / "waits.py"
    script.write_text(
        "import os, pathlib, time\n"
        f"pathlib.Path({str(tmp_path)!r}, os.environ['NODE'] + ' of ' + os.environ['WORLD_SIZE']).touch()\n"
        "time.sleep(800)\n"
    )
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
    # Ranks go by address before they go by process id, so that the first node keeps rank 0 when ids wrap around.
    addresses = [re.search("--local-addr=([^ ]+)", run.command)[1] for run in job.ended().values()]
    assert _NodeDesc(addresses[0], pid=2, local_id=0) < _NodeDesc(addresses[1], pid=1, local_id=0)
    assert not tagged(tag, JOB_VARIABLE) and job.ended()["a"].exit_code != 0, "its rank slept to the end"


def test_a_block_that_ends_at_once_waits_for_no_node_that_starts_late(monkeypatch, tmp_path):
    script, launch = tmp_path / "waits.py", nodes.torchrun
    script.write_text("import time; time.sleep(600)")
    monkeypatch.setattr(nodes, "torchrun", lambda *words, **options: time.sleep(1) or launch(*words, **options))
    with Nodes(script) as job:
        job.start("a")
    assert job.ended()["a"].exit_code != 0, "its rank slept to the end"


def test_a_second_node_is_not_started_where_the_first_has_ended(tmp_path):
    script = tmp_path / "ends.py"
    script.write_text("import os\nraise SystemExit(os.environ['TORCH_DISABLE_SHARE_RDZV_TCP_STORE'])")
    with Nodes(script) as job:
        job.start("a")
        with pytest.raises(RunFailed, match="(?s)node a ended too early, with exit code 1.*exitcode"):
            job.start("b", when=lambda: False)
        [(name, run)] = job.ended().items()
    assert name == "a" and set(run.lines[0]) == {"1"}, "a rank lacks the variable without which no node can join"
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 " in run.command


def test_a_free_port_is_outside_the_range_that_the_system_assigns():
    port = free_port()
    with socket.create_server(("localhost", port)), pytest.raises(OSError):
        socket.create_server(("localhost", port))
    path = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(path.read_text().split()[0]) if path.exists() else 49152
    assert port in NON_EPHEMERAL_PORTS and NON_EPHEMERAL_PORTS.stop <= first


def test_a_port_that_is_taken_is_passed_over(monkeypatch):
    with socket.create_server(("localhost", free_port())) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(nodes, "NON_EPHEMERAL_PORTS", range(port, port + 1))
        with pytest.raises(OSError, match=f"no port from {port} to {port} is free"):
            free_port()
