"""Training jobs in which a process dies, under plain torchrun, as from a terminal."""

import signal
import subprocess
import sys

import psutil
import pytest
from disturbance import wait_until
from training_runs import TRAINER, checkpoint, launch, metrics

from ddp_course.launcher import RunFailed, torchrun

END_LIMIT = 150  # seconds: far more than a job takes to end, far less than COLLECTIVE_TIMEOUT
COLLECTIVE_TIMEOUT = START_LIMIT = 600  # seconds
ENDLESS = ("--steps", "1000000", "--validate-every", "0", "--checkpoint-every", "0", "--sample-tokens", "0")


@pytest.fixture
def job(tmp_path, request):
    """A job without an end, after its first steps: (torchrun, its ranks, the run directory).

    Parameter: the timeout of a collective in seconds, instead of COLLECTIVE_TIMEOUT.
    """
    run_dir = tmp_path / "run"
    timeout = str(getattr(request, "param", COLLECTIVE_TIMEOUT))
    command = [sys.executable, *"-m torch.distributed.run --standalone --nproc-per-node=2".split(), str(TRAINER)]
    command += ["--preset", "tiny", "--run-dir", str(run_dir), "--timeout-seconds", timeout, *ENDLESS]
    log = open(tmp_path / "log", "w")
    launcher = psutil.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    ranks = []
    try:
        assert wait_until(lambda: (run_dir / "metrics.jsonl").exists(), START_LIMIT)
        ranks = sorted(launcher.children(), key=lambda process: int(process.environ()["RANK"]))
        yield launcher, ranks, run_dir
    finally:
        for process in (launcher, *ranks):
            if process.is_running():
                process.kill()
        psutil.wait_procs([launcher, *ranks], timeout=10)
        log.close()


def all_end(processes):
    _, alive = psutil.wait_procs(processes, timeout=END_LIMIT)
    return not alive


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_end_of_torchrun_saves_and_ends_the_ranks(job, number):
    """After a kill -9 the ranks get no signal. At the next step they notice that their parent has changed."""
    launcher, ranks, run_dir = job
    launcher.send_signal(number)
    assert all_end([launcher, *ranks])
    (saved,) = (run_dir / "checkpoints").iterdir()
    assert checkpoint(run_dir, int(saved.name.removeprefix("step_")))["step"] == max(metrics(run_dir))


@pytest.mark.parametrize("victim", [0, 1])
def test_kill_9_of_a_rank_ends_the_job_within_seconds(job, victim):
    launcher, ranks, _ = job
    ranks[victim].kill()
    assert all_end([launcher, *ranks])
    assert launcher.wait() != 0


@pytest.mark.parametrize("job", [20], indirect=True)
def test_a_frozen_rank_ends_the_job_after_the_timeout_of_a_collective(job):
    launcher, ranks, _ = job
    ranks[1].send_signal(signal.SIGSTOP)
    try:
        assert all_end(ranks[:1])
    finally:
        ranks[1].send_signal(signal.SIGCONT)
    assert all_end([launcher, *ranks])
    assert launcher.wait() != 0


def test_the_exception_of_the_rank_that_failed_is_shown(tmp_path, warm_launches):
    script = tmp_path / "broken.py"
    script.write_text(f"""
import os, sys
sys.argv[0] = {str(TRAINER)!r}
from ddp_course import minigpt_ddp
from ddp_course.training import command_line

healthy = minigpt_ddp.clip_grad_norm_
def broken(parameters, limit):
    broken.steps += 1
    if os.environ["RANK"] == "1" and broken.steps == 3:
        raise ZeroDivisionError("injected at step 3")
    return healthy(parameters, limit)
broken.steps = 0
minigpt_ddp.clip_grad_norm_ = broken
command_line.run(minigpt_ddp.train, minigpt_ddp.PRESETS)
""")
    with pytest.raises(RunFailed, match="injected at step 3") as failed:
        torchrun(script, "--preset", "tiny", "--run-dir", tmp_path / "run", *ENDLESS, nproc=2, quiet=True, timeout=600)
    assert failed.value.run.failure.rank == 1
    assert sorted(metrics(tmp_path / "run")) == [1, 2]


def test_no_thread_of_gloo_outlives_a_finished_run(tmp_path, monkeypatch):
    """Such a thread can abort the process as it ends (exit code -6), once in some hundred runs; `make bench` counts."""
    threads = tmp_path / "threads"
    monkeypatch.setenv("THREADS_AT_EXIT", str(threads))  # see startup/sitecustomize.py
    assert launch(tmp_path / "run", "--steps", 2).exit_codes == {0: 0, 1: 0}
    assert not threads.exists(), threads.read_text()
