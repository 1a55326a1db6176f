"""Start and stop: with torchrun, without it, by hand, and when something is in the way."""

import os
import socket
import subprocess
import sys

import pytest

from ddp_course.errors import InputError
from ddp_course.lab.launch import torchrun
from ddp_course.parallel import process_group

WHO_AM_I = """
import json
import torch
import torch.distributed as dist
from ddp_course.parallel import process_group

world = process_group.start(timeout_seconds=30)
process_group.seed_shared(7)
shared = torch.rand(1).item()
process_group.seed_rank(7, world.rank)
mine = torch.rand(1).item()
total = torch.ones(1)
dist.all_reduce(total)
print(json.dumps({"rank": world.rank, "size": world.size, "local_rank": world.local_rank, "is_main": world.is_main,
                  "device": str(world.device), "sum": total.item(), "shared": shared, "mine": mine}))
process_group.stop()
"""

TRAINS_AND_STOPS = """
import json
import sys
from pathlib import Path
import torch
from torch.nn.parallel import DistributedDataParallel
from ddp_course.parallel import process_group

def train(world):
    module = torch.nn.Linear(64, 64)
    if "compiled" in sys.argv:
        module = torch.compile(module, backend="aot_eager")
    model = DistributedDataParallel(module)
    model.cycle = model  # what only the garbage collector can free
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(4, 64)).sum().backward()
        optimizer.step()

def threads_of_gloo():
    names = [(thread / "comm").read_text().strip() for thread in Path("/proc/self/task").iterdir()]
    return sorted(name for name in names if "gloo" in name)

world = process_group.start(timeout_seconds=30)
train(world)
before = threads_of_gloo()
process_group.stop()
print(json.dumps({"before": before, "after": threads_of_gloo()}))
"""


def write(tmp_path, text):
    script = tmp_path / "script.py"
    script.write_text(text)
    return script


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def environment(**changes):
    return {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR")} | changes


@pytest.mark.parametrize("nproc", [1, 2, 4])
def test_every_rank_knows_its_place(tmp_path, nproc):
    results = torchrun(write(tmp_path, WHO_AM_I), nproc=nproc, quiet=True, timeout=60).results
    assert [results[r]["rank"] for r in range(nproc)] == list(range(nproc))
    assert {r["size"] for r in results.values()} == {nproc} == {int(r["sum"]) for r in results.values()}
    assert [r for r in range(nproc) if results[r]["is_main"]] == [0]
    assert len({r["shared"] for r in results.values()}) == 1, "the shared seed gave different numbers"
    assert len({r["mine"] for r in results.values()}) == nproc, "two ranks drew the same number"


def test_one_process_without_torchrun(tmp_path):
    done = subprocess.run([sys.executable, write(tmp_path, WHO_AM_I)], env=environment(), capture_output=True,
                          text=True, timeout=60)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert '"size": 1' in done.stdout and '"sum": 1.0' in done.stdout


def test_a_job_started_by_hand_needs_no_torchrun(tmp_path):
    port = free_port()
    script = write(tmp_path, WHO_AM_I)
    ranks = [
        subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True,
                         env=environment(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2",
                                         MASTER_ADDR="127.0.0.1", MASTER_PORT=port))
        for rank in range(2)
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=60)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert all('"sum": 2.0' in output for output in outputs)


def test_a_port_in_use_is_named(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        env = environment(RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        done = subprocess.run([sys.executable, write(tmp_path, WHO_AM_I)], env=env, capture_output=True, text=True,
                              timeout=60)  # fmt: skip
    assert done.returncode != 0
    assert f"InputError: port {port} on 127.0.0.1 is already in use; set MASTER_PORT to a free one" in done.stderr


def test_ranks_that_do_not_come_are_missed(monkeypatch):
    port = free_port()
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=f"of 2 ranks not all came to 127.0.0.1:{port} within 1 s"):
        process_group.start(timeout_seconds=1)


@pytest.mark.parametrize(("rank", "said"), [(None, "LOCAL_RANK is not set, so each process would take GPU 0"),
                                            ("1", r"2 processes were started on this machine but it has 1 GPU\(s\)")])
def test_a_gpu_is_not_guessed_for_a_job_started_by_hand(monkeypatch, rank, said):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    if rank:
        monkeypatch.setenv("LOCAL_RANK", rank)
    with pytest.raises(InputError, match=said):
        process_group.start(device="cuda")


def test_more_processes_than_gpus_is_refused(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(InputError, match=r"2 processes were started on this machine but it has 1 GPU\(s\)"):
        process_group.start(device="cuda")


@pytest.mark.skipif(sys.platform != "linux", reason="reads the names of threads in /proc")
@pytest.mark.parametrize("how", ["plain", "compiled"])
def test_the_threads_of_gloo_end_with_the_group(tmp_path, how):
    """One that runs on while Python ends can abort the process (exit code -6), once in some hundred launches."""
    run = torchrun(write(tmp_path, TRAINS_AND_STOPS), how, nproc=2, quiet=True, timeout=60)
    assert run.exit_codes == {0: 0, 1: 0}
    for rank in range(2):
        assert run.results[rank]["before"], "the script looked for the wrong names"
        assert run.results[rank]["after"] == []


def test_a_restarted_job_connects_again(tmp_path):
    """Without a store prefix per attempt, restarted ranks read the addresses of the dead ones and time out."""
    script = write(tmp_path, """
import json, os
import torch.distributed as dist
from ddp_course.parallel import process_group

world = process_group.start(timeout_seconds=30)
dist.barrier()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and world.rank == 1:
    os.kill(os.getpid(), 9)
dist.barrier()
print(json.dumps({"attempt": os.environ["TORCHELASTIC_RESTART_COUNT"]}))
process_group.stop()
""")  # fmt: skip
    run = torchrun(script, nproc=2, quiet=True, timeout=90, torchrun_args=["--max-restarts=1"])
    assert {rank: result["attempt"] for rank, result in run.results.items()} == {0: "1", 1: "1"}
