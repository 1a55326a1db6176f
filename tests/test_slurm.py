"""A real Slurm on machines made of namespaces: its queue, its signals, and a batch script that resumes."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from disturbance import wait_until

from ddp_course.authoring.answers import text_of
from ddp_course.base.errors import InputError
from ddp_course.cluster import Cluster, slurm_unavailable, unavailable
from ddp_course.cluster import slurm as slurm_module
from ddp_course.cluster.namespaces import path
from ddp_course.cluster.slurm import PROGRAMS

MISSING = unavailable() or slurm_unavailable()
needs_slurm = pytest.mark.skipif(bool(MISSING), reason=MISSING or "")
TEMPLATE = "ddp_course/cluster/templates/minigpt.sbatch"


@pytest.fixture(scope="module")
def slurm():
    with Cluster(nodes=2, rate="10mbit") as cluster:
        yield cluster.slurm()


@pytest.mark.skipif("DDP_COURSE_EXPECT_SLURM" not in os.environ, reason="DDP_COURSE_EXPECT_SLURM is not set")
def test_where_slurm_was_installed_for_the_tests_they_run():
    assert MISSING is None


# As torchrun ends when its ranks were stopped and have saved; the third attempt is done at once.
TORCHRUN = """#!/bin/bash
trap 'exit 1' TERM
echo "torchrun $*"
until [ "${SLURM_RESTART_COUNT:-0}" = 2 ]; do sleep 0.2; done
"""


@needs_slurm
def test_the_template_starts_the_same_run_again_after_a_requeue_and_after_a_signal(slurm, tmp_path):
    """Without torch. With the trainer, preempted and at its time limit: notebook 16, which is a test, too."""
    (tmp_path / "torchrun").write_text(TORCHRUN)
    (tmp_path / "torchrun").chmod(0o755)
    options = ["--time=UNLIMITED", f"--output={tmp_path}/%j.out"]
    env = {"PATH": f"{tmp_path}:{path()}", "RUN": tmp_path / "run"}
    job = slurm.sbatch(TEMPLATE, "--steps", "9", options=options, env=env)
    slurm.wait(job, until=lambda: slurm.output(job).count("torchrun ") == 2)
    slurm.run("scontrol", "requeue", job)
    slurm.wait(job, until=lambda: slurm.output(job).count("torchrun ") == 4)
    slurm.scancel(job, "--batch", "--signal=TERM")  # as --signal=B:TERM does
    ended = slurm.wait(job)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("COMPLETED", "0:0", "2"), slurm.output(job)
    attempts = slurm.output(job).split("== job ")[1:]
    assert len(attempts) == 3 and "== ended with exit code 75" in attempts[1]
    for number, attempt in enumerate(attempts):
        launches = sorted(line for line in attempt.splitlines() if line.startswith("torchrun "))
        assert len(launches) == 2
        for node, launch in enumerate(launches, 1):
            assert f" --local-addr=node{node} " in launch and f" --rdzv-id={job}-{number} " in launch
            assert f" --rdzv-endpoint=node1:{10000 + job} ddp_course/minigpt_ddp.py " in launch
            assert launch.endswith(f" --run-dir {tmp_path / 'run'} --resume auto --steps 9")


@needs_slurm
def test_the_queue_preempts_cancels_and_keeps_exit_codes(slurm, tmp_path):
    (tmp_path / "sleep.sh").write_text("#!/bin/bash\n#SBATCH --nodes=2 --requeue\necho begun\nsleep 600\n")
    (tmp_path / "three.sh").write_text("#!/bin/bash\nsrun hostname\nexit 3\n")
    options = [f"--output={tmp_path}/%j.out"]
    long = slurm.sbatch(tmp_path / "sleep.sh", options=options)
    slurm.wait(long, until=lambda: "begun" in slurm.output(long))
    waiting = slurm.sbatch(tmp_path / "three.sh", options=options)
    assert slurm.job(waiting)["JobState"] == "PENDING" and "PD" in slurm.squeue()
    urgent = slurm.sbatch(tmp_path / "three.sh", options=[*options, "--nodes=2", "--partition=urgent"])
    ended = slurm.wait(urgent)
    assert (ended["JobState"], ended["ExitCode"]) == ("FAILED", "3:0")
    assert sorted(slurm.output(urgent).split()) == ["node1", "node2"]
    slurm.wait(long, until=lambda: slurm.job(long)["Restarts"] == "1")
    slurm.scancel(long)
    slurm.wait(long)
    assert slurm.job(long)["JobState"] == "CANCELLED" and slurm.wait(waiting)["JobState"] == "FAILED"
    with pytest.raises(InputError, match="scontrol show job 999"):
        slurm.job(999)
    with pytest.raises(InputError, match="there is no batch script"):
        slurm.sbatch(tmp_path / "none.sh")


TRAIN = """#!/usr/bin/env python3
import os, signal, sys, time
from pathlib import Path

run, task, asked = Path(sys.argv[2]), os.environ["SLURM_PROCID"], []
run.mkdir(parents=True, exist_ok=True)
signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
print(f"task {task}: begins at step", 100 * (run / "100.0").exists() * (run / "100.1").exists(), flush=True)
while not asked:
    if Path("done").exists():
        sys.exit(0)
    time.sleep(0.05)
time.sleep(float(Path("seconds").read_text()))
(run / f"100.{task}").touch()
sys.exit(75)
"""


@needs_slurm
def test_this_slurm_does_with_the_batch_scripts_of_exercise_16_what_the_played_one_does(slurm, tmp_path):
    (tmp_path / "train").write_text(TRAIN)
    (tmp_path / "train").chmod(0o755)
    options = ["--time=UNLIMITED", f"--chdir={tmp_path}", f"--output={tmp_path}/%j.out"]

    def near_the_limit(name):
        script = tmp_path / f"{name}.sbatch"
        script.write_text(script_of(text_of("16.1", name)).replace("srun train", f"srun {tmp_path}/train"))
        job = slurm.sbatch(script, options=options)
        slurm.wait(job, until=lambda: slurm.output(job).count("begins at step 0") == 2)
        slurm.scancel(job, "--batch", "--signal=TERM")  # as --signal=B:TERM does
        slurm.wait(job, until=lambda: "ended with exit code" in slurm.output(job))
        return job

    (tmp_path / "seconds").write_text("900")  # it is killed after KillWait, which is 5
    assert slurm.wait(near_the_limit("kills_srun"))["JobState"] == "FAILED"
    assert not list((tmp_path / "runs").glob("*/100.*"))
    (tmp_path / "seconds").write_text("8")
    job = near_the_limit("solution")
    slurm.wait(job, until=lambda: slurm.output(job).count("begins at step 100") == 2)
    (tmp_path / "done").touch()
    ended = slurm.wait(job)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("COMPLETED", "0:0", "1"), slurm.output(job)


def script_of(answer):
    """The batch script that an answer to 16.1 returns."""
    module = {}
    exec(answer, module)
    return module["batch_script"]()


# A Slurm with cgroups, played: of a task only its first process gets a signal; scancel takes longer than a save; a
# requeue ends the batch shell.
PLAYED = {
    "scontrol": 'if [ "$1" = requeue ]; then echo "requeued $2" >>log; kill -KILL $PPID; else echo node1; fi',
    "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; bash -c \'echo $$ >task; exec "$@"\' task "$@" & wait $!',
    "squeue": 'echo "$STATE"',
    "scancel": 'echo "scancel $*" >>log; kill -TERM "$(cat task)"; sleep 2',
    "torchrun": """trap 'echo "torchrun is asked" >>log; exit 1' TERM
        echo "torchrun $*, $OMP_NUM_THREADS threads" >>log; while :; do sleep 0.1; done""",
}


@pytest.fixture
def played(tmp_path):
    """The environment of a batch script on a node of the played Slurm, whose log is in this folder."""
    for name, text in PLAYED.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"JOB_ID": 20007, "JOB_NAME": "job", "JOB_NODELIST": "node1", "NNODES": 1, "CPUS_PER_TASK": 16}
    slurm["GPUS_ON_NODE"] = 4
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURMD_NODENAME": "node1"}
    return env | {f"SLURM_{name}": str(value) for name, value in slurm.items()}


@pytest.mark.parametrize("state", ["RUNNING", "CANCELLED"])
def test_the_template_where_slurm_signals_the_first_process_of_a_task_alone(state, played, tmp_path):
    """It saves and is requeued, unless it was cancelled."""
    log, env = tmp_path / "log", played | {"STATE": state}
    batch = subprocess.Popen(["bash", os.path.abspath(TEMPLATE), "--steps", "9"], cwd=tmp_path, env=env)
    try:
        assert wait_until(lambda: log.exists() and "\n" in log.read_text())  # the file is there before its first line
        batch.terminate()
        assert batch.wait(600) == (-signal.SIGKILL if state == "RUNNING" else 75)
    finally:
        batch.kill()
    started, *then = log.read_text().splitlines()
    requeued = ["requeued 20007"] if state == "RUNNING" else []
    assert then == ["scancel --signal=TERM 20007.0", "torchrun is asked", *requeued]
    assert "--nproc-per-node=4 " in started and "--rdzv-endpoint=node1:10007 " in started
    assert started.endswith("--run-dir runs/job-20007 --resume auto --steps 9, 4 threads")


def test_a_signal_before_the_template_has_started_torchrun_is_not_lost(played, tmp_path):
    """The task's shell signals itself there; torchrun would then run to the time limit."""
    text = Path(TEMPLATE).read_text()
    start = "  torchrun --nnodes"
    assert start in text
    (tmp_path / "batch").write_text(text.replace(start, f"  kill -TERM $BASHPID\n{start}"))
    done = subprocess.run(["bash", "batch"], cwd=tmp_path, env=played | {"STATE": "CANCELLED"}, timeout=600)
    assert done.returncode == 75


def test_without_slurm_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setattr(slurm_module.shutil, "which", lambda name, path: name != "slurmd")
    sentence = slurm_unavailable.__wrapped__()
    assert "slurmd is missing" in sentence and "apt-get install" in sentence and len(PROGRAMS) == 9
