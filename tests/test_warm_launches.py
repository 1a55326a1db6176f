"""A launch whose processes are forked (startup/) prints and ends as a launch whose processes load torch themselves."""

import contextlib
import os
import subprocess
import sys
import textwrap

import psutil
import pytest
from disturbance import wait_until

from ddp_course.cluster import Cluster, unavailable
from ddp_course.launcher import torchrun

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forked on Linux only")
LOOKS = """
    import os, sys, random, tempfile
    import torch, torch.distributed as dist
    pid, (read, write) = os.getpid(), os.pipe()
    if os.fork() == 0:
        os.write(write, b"a fork's parent" if os.getppid() == pid else b"another parent")
        os._exit(0)
    print(os.read(read, 99), tempfile.gettempdir(), sys.dont_write_bytecode)
    dist.init_process_group("gloo")
    total = torch.ones(1) * (dist.get_rank() + 1)
    dist.all_reduce(total)
    print("sum", total.item(), "of", dist.get_world_size(), sys.argv[1:], __name__, os.path.basename(__file__))
    print(os.environ["MINE"], os.getcwd(), torch.get_num_threads(), sys.path[0], len(os.sched_getaffinity(0)))
    print(dist.get_debug_level())
    dist.all_gather_object(hashes := [None, None], hash("text"))
    print(len(set(hashes)), "hashes of a text;", hash(7), hash((1, 2)))
    print("no newline", end="", file=sys.stderr)
    dist.destroy_process_group()
"""
RAISES = """
    import torch.distributed as dist
    dist.init_process_group("gloo")
    def breaks(rank):
        raise ValueError(f"rank {rank} breaks")
    if dist.get_rank() == 1:
        breaks(1)
    dist.barrier()
"""
KILLED = """
    import os, time
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), 11)
    time.sleep(600)
"""
EXITS = """
    import os, sys, time
    if os.environ["RANK"] == "1":
        sys.exit(7)
    time.sleep(600)
"""

ENDS = """
    import atexit, os, sys, threading, time
    if os.environ["RANK"] == "0":  # else torchrun may end rank 1 before it has ended by itself
        time.sleep(600)
    atexit.register(print, "at the end")
    threading.Thread(target=lambda: (time.sleep(0.2), print("a thread has ended"))).start()
    print("not flushed", end=" ")
    sys.exit("why it ends")
"""
STDERR = "no newline", "why it ends"  # what LOOKS and ENDS write there; RAISES writes nothing else


def by_stream(lines):
    """The lines of stdout and those of stderr: two files, and which is read first depends on when they are read."""
    return [line for line in lines if line not in STDERR], [line for line in lines if line in STDERR]


def launch(path, text):
    path.write_text(textwrap.dedent(text))
    variables = {"MINE": "x", "TORCH_DISTRIBUTED_DEBUG": "INFO", "TMPDIR": "/var/tmp", "PYTHONDONTWRITEBYTECODE": "1"}
    return torchrun(path, "--a", "b c", nproc=2, check=False, quiet=True, env=variables)


@pytest.mark.parametrize(
    "text", [LOOKS, RAISES, KILLED, EXITS, ENDS], ids=["looks", "raises", "killed", "exits", "ends"]
)
def test_a_forked_launch_prints_and_ends_as_a_cold_one(tmp_path, text, monkeypatch, warm_launches):
    start = sum(warm_launches.cpu_times()[2:4])
    warm = launch(tmp_path / "script.py", text)
    # The server looks every half second for processes that have ended, and is then charged with their CPU time.
    assert wait_until(lambda: sum(warm_launches.cpu_times()[2:4]) != start, 30), "nothing was forked"
    monkeypatch.delenv("WARM_SERVER")
    cold = launch(tmp_path / "script.py", text)
    assert warm.exit_code == cold.exit_code
    assert warm.exit_codes[1] == cold.exit_codes[1]
    assert by_stream(warm.lines[1]) == by_stream(cold.lines[1])
    assert (warm.failure and warm.failure.rank) == (cold.failure and cold.failure.rank)


def test_a_forked_rank_ends_with_the_process_that_it_stands_in_for(tmp_path, warm_launches):
    script = tmp_path / "script.py"
    script.write_text("import os, time\nprint(os.getpid(), os.getppid(), flush=True)\ntime.sleep(600)")
    variables = os.environ | {"TORCHELASTIC_RUN_ID": "test", "LOCAL_RANK": "0"}
    process = psutil.Popen([sys.executable, script], env=variables, stdout=subprocess.PIPE, text=True)
    try:
        pid, parent = map(int, process.stdout.readline().split())
        assert pid != process.pid and parent == os.getpid()
    finally:
        process.kill()
        process.communicate()
    left = []
    with contextlib.suppress(psutil.NoSuchProcess):  # it has ended already
        left.append(psutil.Process(pid))
    assert psutil.wait_procs(left, timeout=60)[1] == []


ON_A_MACHINE = """
    import os, socket
    import torch.distributed as dist
    dist.init_process_group("gloo")
    print(socket.gethostname(), [os.readlink(f"/proc/self/ns/{kind}") for kind in ("mnt", "net", "pid", "uts")],
          socket.if_nameindex(), os.listdir("/mnt"), os.getcwd(), os.getpid() < 1000)
    dist.destroy_process_group()
"""


@pytest.mark.skipif(unavailable() is not None, reason=f"{unavailable()}")
@pytest.mark.skipif(os.geteuid() != 0, reason="without root, machines are in a user namespace, and start as usual")
def test_a_forked_rank_runs_on_the_machine_of_its_launch(tmp_path, monkeypatch, warm_launches):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(ON_A_MACHINE))
    with Cluster(nodes=2, rate=None) as cluster:
        for node in cluster.nodes:
            cluster.run(node, f"touch /mnt/{node}")
        start = sum(warm_launches.cpu_times()[2:4])
        warm = cluster.torchrun(script, quiet=True)
        assert wait_until(lambda: sum(warm_launches.cpu_times()[2:4]) != start, 30), "nothing was forked"
        monkeypatch.delenv("WARM_SERVER")
        cold = cluster.torchrun(script, quiet=True)
    assert sorted(warm.lines.values()) == sorted(cold.lines.values())
