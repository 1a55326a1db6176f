"""`attach` looks at a job from outside: all its stacks, who waits and who does not, and leaves it alone."""

import os
import subprocess
import sys
import uuid

import psutil
import pytest
from ddp_doctor import stacks
from ddp_doctor.attach import look_at_job
from ddp_doctor.diagnosis import diagnose
from ddp_doctor.launch.supervise import RUN_VARIABLE, sweep, tagged
from ddp_doctor.page import page
from ddp_doctor.watch import rank_processes

torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
HANGS = """
import signal, sys
from pathlib import Path
import torch, torch.distributed as dist

def evaluate():
    dist.all_reduce(torch.ones(4))  # HERE

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
Path(sys.argv[1], f"rank_{dist.get_rank()}").touch()
if dist.get_rank() == 0:
    evaluate()
else:
    signal.pause()
"""


def test_a_job_that_hangs_now(tmp_path):
    script = tmp_path / "hangs.py"
    script.write_text(HANGS)
    tag = uuid.uuid4().hex
    job = subprocess.Popen(
        [*torchrun, str(script), str(tmp_path)], env={**os.environ, RUN_VARIABLE: tag, "OMP_NUM_THREADS": "1"}
    )
    try:
        while not (tmp_path / "rank_0").exists() or not (tmp_path / "rank_1").exists():
            assert job.poll() is None
        ranks = rank_processes(tagged(tag))
        for pid in (job.pid, ranks[1].pid):
            seen = look_at_job(pid)
            verdict = diagnose(seen)
            text = page(seen, verdict)
            assert sorted(seen.ranks) == [0, 1]
            assert verdict.ranks == (1,) and "all-reduce" in verdict.sentence, text
            assert "hangs.py:7 (called from" in verdict.sentence and "under `if dist.get_rank() == 0`" in text
            assert "`signal.pause()` at" in verdict.sentence
            assert "cannot be read from outside" in text
        ranks[1].suspend()
        verdict = diagnose(look_at_job(job.pid))
        assert verdict.kind == "stopped" and verdict.ranks == (1,)
        ranks[1].resume()
        assert all(process.is_running() for process in ranks.values()), "the doctor only looks"
    finally:
        sweep(tag, grace=0)
        job.wait()


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("Error: Permission Denied: Try running again with elevated permissions", "may not read process 7"),
        ("Error: Failed to find python version", "could not read process 7: Error: Failed to find python version"),
    ],
)
def test_a_process_that_py_spy_may_not_read_is_said_in_a_sentence(tmp_path, monkeypatch, message, says):
    refuses = tmp_path / "py-spy"
    refuses.write_text(f"#!/bin/sh\necho '{message}' >&2\nexit 1\n")
    refuses.chmod(0o755)
    monkeypatch.setattr(stacks, "py_spy", lambda: str(refuses))
    frames, _, problem = stacks.stack_of(7)
    assert frames == () and says in problem and len(problem.splitlines()) == 1


def test_a_process_that_is_gone():
    process = psutil.Popen([sys.executable, "-c", ""])
    process.wait()
    assert stacks.stack_of(process.pid)[2]
