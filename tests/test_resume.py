"""Stopped and resumed is the same run as never stopped, to the last bit."""

import os
import shutil
import signal
from types import SimpleNamespace

import pytest
import stopped_within_a_step
import warm
from disturbance import contents, copy_up_to, signal_ranks, when
from trainer_runs import train_in_turn
from training_runs import arguments, assert_same_run, checkpoint, launch, metrics, train, train_here

from ddp_course import minigpt_ddp
from ddp_course.launcher import RunStopped, torchrun
from ddp_course.training import loop, stop_request

STEPS = 6
# Dropout makes the random numbers of every rank part of what must be restored.
FLAGS = ("--steps", STEPS, "--dropout", 0.1, "--checkpoint-every", 1, "--keep-checkpoints", 0)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folders = {nproc: tmp_path_factory.mktemp(f"ranks_{nproc}") for nproc in (1, 2)}
    train_here(folders[1], *FLAGS)
    train(folders[2], *FLAGS)
    return folders


@pytest.mark.parametrize("step", range(1, STEPS))
def test_resuming_at_any_step_is_bit_equal(uninterrupted, tmp_path, step):
    run_dir = copy_up_to(uninterrupted[1], step, tmp_path / "run")
    printed = train_here(run_dir, *FLAGS, "--resume", "auto")
    assert f"resuming from {run_dir}/checkpoints/step_{step:06d}" in printed
    assert f"first loss {metrics(run_dir)[1]:.4f}, last loss {metrics(run_dir)[STEPS]:.4f}" in printed
    assert_resumed(run_dir, uninterrupted[1])


def test_two_ranks_resume_bit_equal(uninterrupted, tmp_path):
    run_dirs = [copy_up_to(uninterrupted[2], step, tmp_path / f"after_{step}") for step in (1, 4)]
    train_in_turn([arguments(run_dir, *FLAGS, "--resume", "auto") for run_dir in run_dirs], 2, tmp_path)
    for run_dir in run_dirs:
        assert_resumed(run_dir, uninterrupted[2])


def test_four_ranks_resume_bit_equal(tmp_path):
    """With more than two, the order in which DDP adds up matters, and a first backward has an order of its own."""
    flags = ("--steps", 4, "--checkpoint-every", 2, "--keep-checkpoints", 0)
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    resume = ("--resume", whole / "checkpoints" / "step_000002")
    train_in_turn([arguments(whole, *flags), arguments(resumed, *flags, *resume)], 4, tmp_path)
    assert sorted(metrics(resumed)) == [3, 4]
    assert_same_run(resumed, whole, 4, after=2)


def assert_resumed(resumed, uninterrupted):
    assert_same_run(resumed, uninterrupted, STEPS, ("loss", "val_loss"))
    assert len(metrics(resumed)) == STEPS, "a step is lost"


def test_resume_at_another_world_size_continues_with_the_same_data(tmp_path):
    flags = ("--steps", STEPS, "--precision", "float64", "--checkpoint-every", 3, "--keep-checkpoints", 0)
    train_here(tmp_path / "one", *flags)
    run_dir = copy_up_to(tmp_path / "one", 3, tmp_path / "run")
    run = train(run_dir, *flags, "--resume", "auto", nproc=2)
    assert "saved by 1 rank(s), resumed by 2: random states start anew" in run.lines[0]
    assert metrics(run_dir) == pytest.approx(metrics(tmp_path / "one"), abs=1e-10)


@pytest.mark.usefixtures("warm_launches")
def test_sigterm_saves_on_all_ranks_and_the_run_resumes(tmp_path):
    """SIGTERM to the ranks: both finish the same step, save, and leave with an exit code that schedulers restart."""
    run_dir = tmp_path / "run"
    flags = ("--steps", 100_000, "--dropout", 0.1, "--validate-every", 0, "--checkpoint-every", 0)
    pid_of_test = os.getpid()
    watcher = when(lambda: (run_dir / "metrics.jsonl").exists(), lambda: signal_ranks(pid_of_test, signal.SIGTERM))
    with pytest.raises(RunStopped, match="(?s)every rank ended with exit code 75.*stopped after step") as stopped:
        launch(run_dir, *flags)
    watcher.join()
    run = stopped.value.run
    assert run.exit_codes == {0: 75, 1: 75} and run.exit_code == 1  # torchrun has one exit code for all failures
    report = [line for line in run.launcher_lines if "go on with --run-dir" in line]
    assert report, "torchrun's report does not say what has happened"
    (saved,) = (run_dir / "checkpoints").iterdir()
    step = int(saved.name.removeprefix("step_"))
    assert max(metrics(run_dir)) == step < 100_000
    assert any(f"stopped after step {step}: received SIGTERM" in line for line in run.lines[0])

    flags = ("--steps", step + 2, "--dropout", 0.1, "--validate-every", 0, "--checkpoint-every", 0)
    train_here(run_dir, *flags, "--resume", "auto")
    assert sorted(metrics(run_dir)) == list(range(1, step + 3))


def test_sigterm_within_a_long_step_does_not_wait_for_its_end(tmp_path):
    """The step is given up and done again: the result equals that of the uninterrupted run, dropout masks included."""
    flags = (*FLAGS, "--micro-batch-size", 1, "--tokens-per-update", 8 * minigpt_ddp.PRESETS["tiny"].context)
    words = "minigpt_ddp", 2, 2, *arguments(tmp_path / "run", *flags)  # in the third step, the second time
    run = warm.ranks(stopped_within_a_step.__file__, *words, nproc=2, exit_code=75)
    assert any("stopped after step 2: received SIGTERM" in line for line in run.lines[0])
    assert max(metrics(tmp_path / "run")) == 2
    runs = [arguments(tmp_path / "run", *flags, "--resume", "auto"), arguments(tmp_path / "whole", *flags)]
    train_in_turn(runs, 2, tmp_path)
    assert_resumed(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("seconds, requests_per_step", [(1.0, 4), (0.1, 1)])
def test_a_long_step_asks_every_two_seconds_and_a_short_one_once(tmp_path, monkeypatch, seconds, requests_per_step):
    """The clock here advances in forward passes only; a step has eight."""
    now, requests, forward = [0.0], [], minigpt_ddp.autocast
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def later(*arguments):
        now[0] += seconds
        return forward(*arguments)

    monkeypatch.setattr(minigpt_ddp, "autocast", later)
    flags = ("--micro-batch-size", 1, "--tokens-per-update", 8 * minigpt_ddp.PRESETS["tiny"].context)
    monkeypatch.setattr(stop_request.StopRequest, "asked", lambda self: bool(requests.append(1)))
    train_here(tmp_path, *flags, "--steps", 3, "--validate-every", 0, "--checkpoint-every", 0)
    assert len(requests) == 8 + 2 * requests_per_step  # the first step asks in each pass: how long it takes is unknown


def test_a_time_budget_stops_all_ranks_at_the_same_step(tmp_path):
    run = train(
        tmp_path, "--steps", 100_000, "--validate-every", 0, "--checkpoint-every", 0, "--max-seconds", 2, exit_code=75
    )
    (saved,) = (tmp_path / "checkpoints").iterdir()
    assert any("the time budget is spent" in line for line in run.lines[0])
    assert len(checkpoint(tmp_path, int(saved.name.removeprefix("step_")))["random_states"]) == 2


KILLED = """
import os, signal
from ddp_course import minigpt_ddp

clip, calls = minigpt_ddp.clip_grad_norm_, []

def killed_in_the_third_step(*arguments):
    calls.append(1)
    if len(calls) == 3 and (os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]) == ("0", "1"):
        os.kill(os.getpid(), signal.SIGKILL)
    return clip(*arguments)

minigpt_ddp.clip_grad_norm_ = killed_in_the_third_step
minigpt_ddp.run(minigpt_ddp.train, minigpt_ddp.PRESETS)
"""


@pytest.mark.usefixtures("warm_launches")
@pytest.mark.parametrize("named", [True, False])
def test_a_killed_rank_is_restarted_and_the_end_is_bit_equal(uninterrupted, tmp_path, monkeypatch, named):
    """kill -9 of a rank in mid-run: restarted by torchrun it resumes by itself, even in a folder named by the clock."""
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    flags = arguments("runs/named" if named else "", *FLAGS)
    run = torchrun(script, *flags, nproc=2, quiet=True, timeout=600, torchrun_args=["--max-restarts=1"])
    assert any("resuming from" in line and "step_000002" in line for line in run.lines[0])
    [run_dir] = (tmp_path / "runs").iterdir()
    assert_resumed(run_dir, uninterrupted[2])


def test_a_stop_is_saved_without_waiting_for_a_validation(tmp_path, monkeypatch):
    monkeypatch.setattr(minigpt_ddp, "validate", lambda *_: pytest.fail("validated before it saved"))
    printed = train_here(tmp_path, "--steps", 100_000, "--validate-every", 0, "--max-seconds", 0.2)
    assert "the time budget is spent" in printed and list((tmp_path / "checkpoints").iterdir())


def test_a_flag_that_has_changed_has_an_effect(uninterrupted, tmp_path):
    """Loading an optimizer's state also loads its settings: the trainer has to put the new ones back."""
    run_dir = copy_up_to(uninterrupted[1], 5, tmp_path / "run")
    train_here(run_dir, *FLAGS, "--resume", "auto", "--weight-decay", 0.5)
    groups = checkpoint(run_dir, STEPS)["optimizer"]["param_groups"]
    assert [group["weight_decay"] for group in groups] == [0.5, 0.0]


def test_resuming_a_finished_run_changes_nothing_and_says_so(uninterrupted, tmp_path):
    run_dir = shutil.copytree(uninterrupted[1], tmp_path / "run")
    initial = contents(run_dir)
    printed = train_here(run_dir, *FLAGS, "--resume", "auto")
    assert f"nothing left to do: step {STEPS} of {STEPS}" in printed
    assert "nan" not in printed
    assert contents(run_dir) == initial
