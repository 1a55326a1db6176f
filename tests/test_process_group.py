"""Start and stop: with torchrun, without it, by hand, and when something is in the way."""

import os
import random
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
import warm
from disturbance import wait_until

from ddp_course.base.errors import InputError
from ddp_course.distributed import process_group, rendezvous
from ddp_course.launcher import torchrun
from ddp_course.launcher.nodes import free_port

WHO_AM_I = """
import json
import torch
import torch.distributed as dist
from ddp_course.distributed import process_group

world = process_group.start(timeout_seconds=300)
process_group.seed_shared(7)
shared = torch.rand(1).item()
process_group.seed_rank(7, world.rank)
own = torch.rand(1).item()
total = torch.ones(1)
dist.all_reduce(total)
print(json.dumps({"rank": world.rank, "size": world.size, "local_rank": world.local_rank, "is_main": world.is_main,
                  "sum": total.item(), "shared": shared, "own": own}))
process_group.stop()
"""

TRAINS_AND_STOPS = """
import json
import sys
from pathlib import Path
import torch
from torch.nn.parallel import DistributedDataParallel
from ddp_course.distributed import process_group

def train(kind):
    module = torch.nn.Linear(64, 64)
    model = DistributedDataParallel(torch.compile(module, backend="aot_eager") if kind == "compiled" else module)
    model.cycle = model  # what only the garbage collector can free
    if kind == "sharded":
        from torch.distributed.fsdp import fully_shard
        model = fully_shard(torch.nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(4, 64)).sum().backward()
        optimizer.step()

def threads_of_gloo():
    names = [(thread / "comm").read_text().strip() for thread in Path("/proc/self/task").iterdir()]
    return sorted(name for name in names if "gloo" in name)

process_group.start(timeout_seconds=300)
train(sys.argv[1])
before = threads_of_gloo()
process_group.stop()
print(json.dumps({"before": before, "after": threads_of_gloo()}))
"""


def write(tmp_path, text):
    script = tmp_path / "script.py"
    script.write_text(text)
    return script


def started_by_hand(tmp_path, *environments):
    """WHO_AM_I in a process for each of these environments."""
    return warm.processes(write(tmp_path, WHO_AM_I), [], environments, timeout=600)


@pytest.fixture
def set_job(monkeypatch):
    """A function that makes this process rank 0 of a job of two that was started by hand, with these variables."""
    job = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}

    def set_variables(**changes):
        for name, value in (job | changes).items():
            monkeypatch.setenv(name, value)

    return set_variables


@pytest.mark.usefixtures("warm_launches")
@pytest.mark.parametrize("nproc", [1, 2, 4])
def test_every_rank_knows_its_numbers(tmp_path, nproc):
    results = torchrun(write(tmp_path, WHO_AM_I), nproc=nproc, quiet=True, timeout=600).results
    assert [(results[r]["rank"], results[r]["local_rank"]) for r in range(nproc)] == [(r, r) for r in range(nproc)]
    assert {r["size"] for r in results.values()} == {nproc} == {int(r["sum"]) for r in results.values()}
    assert [r for r in range(nproc) if results[r]["is_main"]] == [0]
    assert len({r["shared"] for r in results.values()}) == 1, "the shared seed gave different numbers"
    assert len({r["own"] for r in results.values()}) == nproc, "two ranks drew the same number"


def test_one_process_without_torchrun(tmp_path):
    [done] = started_by_hand(tmp_path, {})
    assert done.returncode == 0, done.stderr
    assert '"size": 1' in done.stdout and '"sum": 1.0' in done.stdout


def test_starting_twice_returns_the_same_world_until_it_stops():
    world = process_group.start(60, "cpu")
    try:
        assert process_group.start() is world and process_group.start(5, "cpu") is world
        with pytest.raises(InputError, match="the process group is already on cpu, so it cannot start on cuda"):
            process_group.start(5, "cuda")
    finally:
        process_group.stop()
    try:
        assert process_group.start(60, "cpu") is not world
    finally:
        process_group.stop()


def test_a_job_started_by_hand_needs_no_torchrun(tmp_path):
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    done = started_by_hand(tmp_path, *(job | {"RANK": rank, "LOCAL_RANK": rank} for rank in "01"))
    assert all('"sum": 2.0' in process.stdout for process in done)


def test_a_port_in_use_is_named(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        job = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        [done] = started_by_hand(tmp_path, job)
    assert done.returncode != 0
    assert f"InputError: port {port} on 127.0.0.1 is already in use; set MASTER_PORT to a free one" in done.stderr


def test_missing_ranks_are_named(set_job):
    port = str(free_port())
    set_job(MASTER_PORT=port)
    with pytest.raises(InputError, match=f"of 2 ranks not all came to 127.0.0.1:{port} within 1 s; missing: 1"):
        process_group.start(timeout_seconds=1)


def test_a_rank_that_comes_while_this_one_is_stopped_is_not_missing(monkeypatch, set_job):
    """A minute passes, and rank 1 comes, right after rank 0 has asked how many have come."""
    now, counts = [0.0], {}
    monkeypatch.setattr(rendezvous, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: None))

    def add(key, amount):
        counts[key] = counts.get(key, 0) + amount
        answer = counts[key]
        if (key, amount, answer) == ("ranks", 0, 1):
            now[0] += 60
            counts.update(rank_1=1, ranks=2)
        return answer

    store = SimpleNamespace(add=add, check=lambda keys: keys[0] in counts)
    monkeypatch.setattr(rendezvous, "_connect", lambda *_: None)
    monkeypatch.setattr(rendezvous.dist, "PrefixStore", lambda prefix, connected: store)
    set_job()
    assert rendezvous.wait_for_all_ranks(0, 2, seconds=30, launcher=os.getppid()) is store


def test_a_store_that_opens_while_this_rank_is_stopped_is_found(monkeypatch):
    """A minute passes, and rank 0 serves its store, right after rank 1 has been refused."""
    now, attempts = [0.0], []
    monkeypatch.setattr(rendezvous, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: None))

    def connect(address, timeout):
        attempts.append(address)
        if len(attempts) == 1:
            now[0] += 60
            raise ConnectionRefusedError
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(rendezvous.socket, "create_connection", connect)
    rendezvous._wait_for_answer(1, "127.0.0.1", 29500, 30, 30, launcher_serves=False, launcher=os.getppid())
    assert len(attempts) == 2


def test_a_launcher_that_ends_when_it_has_just_answered_is_noticed(monkeypatch):
    """torch's store would go on trying to connect to it, here for ten minutes."""
    ended = threading.Event()
    monkeypatch.setattr(rendezvous.dist, "TCPStore", lambda *_, **__: ended.wait(600))
    monkeypatch.setattr(rendezvous, "launcher_is_gone", lambda launcher: True)
    try:
        with pytest.raises(InputError, match="rank 1 ends: its launcher has ended before it met the others"):
            rendezvous._connect(1, "127.0.0.1", 29500, False, 600, time.monotonic() + 600, os.getppid())
    finally:
        ended.set()


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT"])
@pytest.mark.parametrize("text", ["", "two", "-1", "1.5", "9" * 5000, "\u00b2", " 1"])
def test_a_variable_of_the_environment_that_is_no_such_number_is_named(set_job, name, text):
    set_job(**{name: text})
    with pytest.raises(InputError, match=f"^{name} is .*, expected a whole number from [01] to "):
        process_group.start(timeout_seconds=1, device="cpu")


def test_a_rank_beyond_the_world_size_is_refused(set_job):
    set_job(RANK="3")
    with pytest.raises(InputError, match="RANK is 3, but WORLD_SIZE is 2: the ranks of this job are 0 to 1"):
        process_group.start(timeout_seconds=1, device="cpu")


@pytest.mark.parametrize(
    ("what", "message"),
    {
        "nobody serves it": "rank 1 got no answer from 127.0.0.1:.* within 2 s",
        "the launcher is gone": "rank 1 ends: its launcher, which served 127.0.0.1:.*, has ended",
        "another service": "rank 1 cannot meet the others at 127.0.0.1:.*: it does not answer",
        "no machine": "rank 1 got no answer from no.such.machine.invalid:.* within 2 s",
        "no name": "MASTER_ADDR is 'aaa.*', which is not the name of a machine",
    }.items(),
)
def test_a_wait_for_the_others_is_as_long_as_it_says(monkeypatch, set_job, what, message):
    """TCPStore's own wait took 42 s for 20, and 310 s for 120. (The limit here is far above what is measured, 2 s.)"""
    address = {"no machine": "no.such.machine.invalid", "no name": "a" * 300}.get(what, "127.0.0.1")
    monkeypatch.setattr(process_group, "_started", None)
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        if what == "another service":
            mute.listen()
        port = str(mute.getsockname()[1])  # nobody else can serve it: it is bound, and refuses until it listens
        has_agent = what == "the launcher is gone"
        set_job(RANK="1", LOCAL_RANK="1", MASTER_ADDR=address, MASTER_PORT=port)
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", str(has_agent))
        seconds = 600 if has_agent else 2
        start = time.monotonic()
        with pytest.raises(InputError, match=message) as error:
            process_group.start(timeout_seconds=seconds, device="cpu")
    assert "\n" not in str(error.value) and time.monotonic() - start < 60


WAITS = """
import os, pathlib, sys
from ddp_course.base.errors import InputError
from ddp_course.distributed import process_group

began = pathlib.Path(sys.argv[1])
began.with_suffix(".new").write_text(str(os.getpid()))
began.with_suffix(".new").rename(began)
try:
    process_group.start(600, "cpu")
except InputError as error:
    pathlib.Path(sys.argv[2]).write_text(str(error))
os._exit(1)
"""
LAUNCHES = """
import os, subprocess, sys, time
import torch.distributed as dist

store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
job = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
subprocess.Popen([sys.executable, *sys.argv[1:]], env=os.environ | job | {"TORCHELASTIC_USE_AGENT_STORE": "True"})
time.sleep(600)
"""


def test_ranks_notice_that_their_launcher_has_ended_before_they_had_met(tmp_path):
    """The launcher here serves the store, starts rank 0 of 2 and is killed; rank 0 would wait for 10 minutes."""
    (tmp_path / "rank.py").write_text(WAITS)
    (tmp_path / "launcher.py").write_text(LAUNCHES)
    began, report = tmp_path / "began", tmp_path / "report"
    launcher = subprocess.Popen([sys.executable, tmp_path / "launcher.py", tmp_path / "rank.py", began, report])
    try:
        assert wait_until(began.exists)
        time.sleep(1.0)
    finally:
        launcher.kill()
        launcher.wait()
    assert wait_until(lambda: not psutil.pid_exists(int(began.read_text())))
    assert "has ended" in report.read_text()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORLD_SIZE": "2"}, "LOCAL_RANK is not set, so each process would take GPU 0"),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, "process 1 of this .* has no GPU .* here are 1; use"),
        ({"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "2"}, "process 2 of this .* has no GPU .* here are 1; use"),
    ],
)
def test_no_gpu_is_guessed_or_shared(monkeypatch, variables, message):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=message):
        process_group.start(device="cuda")


def test_each_process_may_see_its_own_gpu_alone(monkeypatch):
    """As with `torchrun --virtual-local-rank`: LOCAL_RANK is 0 for all processes of the machine."""
    chosen = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.set_device", chosen.append)
    monkeypatch.setattr(process_group, "wait_for_all_ranks", lambda *_: dist.HashStore())
    monkeypatch.setattr(dist, "init_process_group", lambda **_: None)
    monkeypatch.setattr(process_group, "_started", None)
    for name, value in {"RANK": "3", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    assert process_group.start().device == torch.device("cuda", 0) and chosen == [0]


@pytest.mark.skipif(sys.platform != "linux", reason="reads the names of threads in /proc")
@pytest.mark.usefixtures("warm_launches")
@pytest.mark.parametrize("kind", ["plain", "compiled"])
def test_the_threads_of_gloo_end_with_the_group(tmp_path, kind):
    """One that runs on while Python ends can abort the process (exit code -6), once in some hundred launches.

    The ranks are started anew, not forked, because their script looks into /proc/self: what torch loads after the group
    has begun is part of the problem.
    """
    run = torchrun(write(tmp_path, TRAINS_AND_STOPS), kind, nproc=2, quiet=True, timeout=600)
    assert run.exit_codes == {0: 0, 1: 0}
    for rank in range(2):
        assert run.results[rank]["before"], "the script looked for the wrong names"
        assert run.results[rank]["after"] == []


def test_sharded_jobs_end_cleanly(tmp_path):
    """FSDP2's caches keep the group, and with it gloo's threads: that must not end a good run in an abort or a hang."""
    script = write(tmp_path, TRAINS_AND_STOPS)
    for _ in range(10):
        warm.ranks(script, "sharded", nproc=2, timeout=120)  # raises for another exit code than 0


def test_a_restarted_job_connects_again(tmp_path, warm_launches):
    """Without a store prefix per attempt, restarted ranks read the addresses of the dead ones and time out."""
    script = write(
        tmp_path,
        """
import json, os
import torch.distributed as dist
from ddp_course.distributed import process_group

world = process_group.start(timeout_seconds=300)
dist.barrier()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and world.rank == 1:
    os.kill(os.getpid(), 9)
dist.barrier()
print(json.dumps({"attempt": os.environ["TORCHELASTIC_RESTART_COUNT"]}))
process_group.stop()
""",
    )
    run = torchrun(script, nproc=2, quiet=True, timeout=600, torchrun_args=["--max-restarts=1"])
    assert {rank: result["attempt"] for rank, result in run.results.items()} == {0: "1", 1: "1"}


def test_nodes_that_have_counted_different_restarts_meet(tmp_path):
    """Each agent counts its own: of a job that has lost a node, the node that comes next has counted none."""
    script = write(
        tmp_path,
        """
import json, os, sys
import torch.distributed as dist
from ddp_course.distributed import process_group

os.environ |= {"TORCHELASTIC_RESTART_COUNT": str(1 - int(os.environ["RANK"])), "MASTER_PORT": sys.argv[1],
               "TORCHELASTIC_USE_AGENT_STORE": "False"}  # as with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
process_group.start(timeout_seconds=300)
dist.barrier()
print(json.dumps({"met": True}))
process_group.stop()
""",
    )
    run = warm.ranks(script, free_port(), nproc=2, timeout=600)
    assert run.results == {0: {"met": True}, 1: {"met": True}}


def test_the_seed_decides_every_generator_alike_or_by_rank():
    """Python's and NumPy's are saved in checkpoints: a seed that does not reach them would be no seed."""

    def after(seed, *arguments):
        seed(*arguments)
        return random.random(), np.random.normal(), torch.rand(1).item()

    shared, own = process_group.seed_shared, process_group.seed_rank
    assert after(shared, 7) == after(shared, 7) and after(own, 7, 1) == after(own, 7, 1)
    for left, right in ((after(shared, 7), after(shared, 8)), (after(own, 7, 0), after(own, 7, 1))):
        assert all(a != b for a, b in zip(left, right, strict=True))
    after(shared, 2**64 - 1), after(own, 2**64 - 1, 99)  # the largest seed
