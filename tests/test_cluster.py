"""Machines made of namespaces: their names, their cables, jobs on them, and that they leave nothing behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys

import psutil
import pytest
from disturbance import processes_of_this_test, wait_until
from training_runs import TRAINER, arguments, metrics, train

from ddp_course.base.errors import InputError
from ddp_course.cluster import Cluster, available, job, machines, slurm_unavailable, unavailable
from ddp_course.cluster.cable import limit
from ddp_course.launcher import RunFailed

here = pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "")
SERVE = """
import socket
server = socket.create_server(("", 5000))
print("listening", flush=True)
peer, _ = server.accept()
while size := int.from_bytes(peer.recv(8, socket.MSG_WAITALL), "big"):
    while size:
        size -= len(peer.recv(min(size, 1 << 16)))
    peer.sendall(b"x")
"""
SEND = """
import json, socket, sys, time
peer = socket.create_connection(("node1", 5000))
for size in json.loads(sys.argv[1]):
    start = time.perf_counter()
    peer.sendall(size.to_bytes(8, "big") + bytes(size))
    peer.recv(1)
    print(time.perf_counter() - start)
"""
LOOP = """
import sys, time
from datetime import timedelta
import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=600))  # one rank may begin long after the other
dist.barrier()
impatient = dist.new_group(timeout=timedelta(seconds=5))
for step in range(2000):
    dist.all_reduce(torch.ones(1000), group=impatient)
    print("step", step, flush=True)
    time.sleep(0.05)
"""
HOLD = """
import os, subprocess, sys, time
from ddp_course.cluster import Cluster, slurm_unavailable
cluster = Cluster(2, "100mbit")
slurm_unavailable() or cluster.slurm()
subprocess.Popen(cluster.entering("node2", "sleep 600 & sleep 600"))
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def cluster():
    with Cluster(nodes=3, rate=None) as cluster:
        yield cluster


def serving(cluster):
    serve = subprocess.Popen(
        cluster.entering("node1", [sys.executable, "-c", SERVE]), stdout=subprocess.PIPE, text=True
    )
    assert serve.stdout.readline()
    return serve


@here
def test_machines_reach_themselves_and_each_other_by_name(cluster):
    assert cluster.nodes == ["node1", "node2", "node3"]
    for node in cluster.nodes:
        assert cluster.run(node, ["hostname"]).stdout.strip() == node
        for other in cluster.nodes:
            address = f"10.77.0.{other[-1]}"
            assert address in cluster.run(node, f"getent ahosts {other}").stdout
    serve = serving(cluster)
    cluster.run("node3", [sys.executable, "-c", SEND, "[10, 0]"])
    assert serve.wait(60) == 0
    cluster.run("node2", "echo text > /mnt/file")
    assert cluster.run("node1", "ls -A /mnt").stdout == "" and cluster.run("node2", "cat /mnt/file").stdout == "text\n"
    with pytest.raises(InputError, match="on node2, 'exit 3' ended with exit code 3"):
        cluster.run("node2", "exit 3")
    with pytest.raises(InputError, match="there is no machine 'node7'"):
        cluster.run("node7", "true")


@here
def test_a_command_on_a_machine_finds_this_pythons_torchrun_without_an_activated_environment(cluster, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    torchrun = os.path.join(os.path.dirname(sys.executable), "torchrun")
    assert cluster.run("node1", "command -v torchrun").stdout == f"{torchrun}\n"


@here
def test_a_cable_is_as_slow_as_it_should_be(cluster):
    """It is never faster than its rate, and a cable of a tenth of the rate takes longer."""
    sizes = [1 << 14] * 20 + [1 << 20] * 3 + [0]  # the burst lets the first of them pass
    seconds = {}
    for rate in ("100mbit", "10mbit"):
        cluster.set_rate("node2", rate)
        serve = serving(cluster)
        done = cluster.run("node2", [sys.executable, "-c", SEND, json.dumps(sizes)], check=False)
        times = [float(line) for line in done.stdout.split()][: len(sizes) - 1]
        assert serve.wait(60) == 0 and len(times) == len(sizes) - 1, done.stderr
        burst = int(limit(rate)[4])
        for size, taken in zip(sizes, times, strict=False):
            bits = float(rate.removesuffix("mbit")) * 1e6
            assert taken > 0.95 * 8 * (size - 2 * burst - 3000) / bits, (rate, size, taken)
        seconds[rate] = min(times[-3:])  # a process that waits for a core makes single ones longer
    cluster.set_rate("node2", None)
    assert seconds["10mbit"] > 3 * seconds["100mbit"]


@here
def test_the_trainer_on_three_machines_equals_the_trainer_here(cluster, tmp_path):
    """The same losses, bit for bit, as that many processes of one machine; those equal one process's (test_ladder).

    On two machines: test_templates.py, by the command of a TrainJob; under Slurm: notebook 16.
    """
    flags = "--steps 4 --tokens-per-update 3072 --checkpoint-every 0 --validate-every 0".split()
    train(tmp_path / "here", *flags, nproc=3)
    run = cluster.torchrun(TRAINER, *arguments(tmp_path / "there", *flags), quiet=True, timeout=900)
    assert metrics(tmp_path / "there") == metrics(tmp_path / "here") != {}
    assert run.nodes == {0: "node1", 1: "node2", 2: "node3"}
    assert set(run.exit_codes.values()) == set(run.node_exit_codes.values()) == {run.exit_code} == {0}


@here
def test_a_cut_cable_ends_the_job_and_is_named(tmp_path, capsys):
    (tmp_path / "loop.py").write_text(LOOP)
    with Cluster(2) as cluster:
        with pytest.raises(RunFailed) as failed:
            cluster.torchrun(tmp_path / "loop.py", timeout=600, at={"step 5": lambda: cluster.cut("node2")})
        cluster.mend("node2")
        cluster.run("node2", "getent hosts node1")
    text, run = str(failed.value), failed.value.run
    assert "lost contact" in text and "Timed out waiting 5000ms" in text and "the cable of node2 is cut" in text, text
    assert not run.timed_out and run.exit_code != 0
    assert "[rank 1 node2]" in capsys.readouterr().out


def networks_of(pids):
    """The numbers of the network namespaces of these processes, some of which may have ended."""
    networks = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            networks.add(os.stat(f"/proc/{pid}/ns/net").st_ino)
    return networks


@here
def test_nothing_is_left_when_its_process_is_killed():
    """Processes in other process namespaces are visible here; namespaces and interfaces end with the last of them."""
    mounts, links = open("/proc/self/mounts").read(), os.listdir("/sys/class/net")
    holder = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "up\n"
    assert wait_until(lambda: sum(process.name() == "sleep" for process in processes_of_this_test()) >= 2)
    pids = [process.pid for process in processes_of_this_test()]
    networks = networks_of(pids) - networks_of([os.getpid()])
    assert len(networks) == 3  # the switch's, and one for each machine
    with contextlib.ExitStack() as held:  # else the next namespace of another test gets the number of one that ended
        for pid in pids:
            with contextlib.suppress(OSError):
                held.enter_context(open(f"/proc/{pid}/ns/net"))
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        # A process that ends loses its environment, by which it is known here, before its namespaces.
        assert wait_until(lambda: not processes_of_this_test() and not networks & networks_of(psutil.pids()))
    assert open("/proc/self/mounts").read() == mounts and os.listdir("/sys/class/net") == links


@here
def test_a_shell_starts_uses_and_ends_a_cluster(tmp_path):
    command = [sys.executable, "-m", "ddp_course.cluster", "--folder", str(tmp_path / "state")]
    slurm = [] if slurm_unavailable() else ["--slurm"]
    wanted = ["up", "--nodes", "1", "--rate", "50mbit", *slurm]
    up = subprocess.Popen([*command, *wanted], stdout=subprocess.PIPE, text=True)
    assert "node1" in up.stdout.readline()
    hello = subprocess.run([*command, "run", "all", "hostname"], capture_output=True, text=True)
    assert (hello.stdout, hello.returncode) == ("node1\n", 0), hello.stderr
    if slurm:
        assert subprocess.run([*command, "slurm", "srun", "hostname"], capture_output=True).stdout == b"node1\n"
    assert "50mbit" in subprocess.run([*command, "status"], capture_output=True, text=True).stdout
    assert subprocess.run([*command, "down"]).returncode == 0 and up.wait(60) == 0
    late = subprocess.run([*command, "run", "node1", "true"], capture_output=True, text=True)
    assert late.returncode == 2 and "no cluster is up" in late.stderr


ENDS_WHILE_ASKED = """
import os, signal
from ddp_course.cluster import enter

def waitpid(*arguments, wait=os.waitpid):
    ended = wait(*arguments)
    os.kill(os.getpid(), signal.SIGTERM)  # comes when the child has just ended
    return ended

os.waitpid, enter.enter_namespaces = waitpid, lambda pid: None
enter.main([{"pid": 0, "command": ["sh", "-c", "exit 3"]}])
"""
DOWN_AT_ONCE = """
import os, signal, sys
from ddp_course.cluster import __main__ as command
command.print = lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM)
sys.exit(command.main(["--folder", sys.argv[1], "up", "--nodes", "1"]))
"""


@here
@pytest.mark.parametrize(("script", "exit_code"), [(ENDS_WHILE_ASKED, 3), (DOWN_AT_ONCE, 0)], ids=["command", "up"])
def test_sigterm_at_an_awkward_moment_changes_no_exit_code(tmp_path, script, exit_code):
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (exit_code, "") and not list(tmp_path.iterdir())


def test_where_it_cannot_run_one_sentence_says_why_and_what_to_do(monkeypatch):
    for error, words in {
        "unshare: unshare failed: Operation not permitted": "sudo",
        "tc qdisc replace dev port1 root tbf: Error: Specified qdisc kind is unknown.": "modprobe sch_tbf",
    }.items():
        assert words in (sentence := available.explain(error)) and error in sentence and "\n" not in sentence
    monkeypatch.setattr(available.sys, "platform", "darwin")
    sentence = unavailable.__wrapped__()
    assert "needs Linux" in sentence
    monkeypatch.setattr(machines, "unavailable", lambda: sentence)
    with pytest.raises(InputError, match="needs Linux"):
        Cluster()
    monkeypatch.setattr(available.sys, "platform", "linux")
    monkeypatch.setattr(available.shutil, "which", lambda name, path: name != "tc")
    assert "the command tc" in unavailable.__wrapped__() and "apt-get install iproute2" in unavailable.__wrapped__()


def test_how_ranks_of_a_stopped_torchrun_ended_is_inferred():
    """torchrun reports nothing. A traceback is a failure, a rank at its last barrier succeeded, others were stopped."""
    report = job.infer_report(["Received 15 death signal, shutting down workers"], [2, 3], {3: 0.1})
    assert (
        report.codes == {2: -15, 3: 1} and report.failed == {3} and report.got_sigterm == {2} and not report.left_early
    )
    waited = job.infer_report(["  in _exit_barrier"], [2], {})
    assert waited.codes == {2: 0} and waited.left_early == [2]


def test_an_unreadable_speed_and_no_machine_are_refused():
    assert limit(None) == [] and limit("1gbit")[2] == "1000000000bit"
    for wrong in ("fast", "100", "0mbit", "100mb"):
        with pytest.raises(InputError, match="speed of a cable"):
            Cluster(rate=wrong)
    with pytest.raises(InputError, match="number of machines"):
        Cluster(nodes=0)
