"""The script to copy trains as the course's trainer does, at any number of processes, and goes on after a stop."""

import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import warm
from training_runs import ROOT, metrics, train_in_turn

from ddp_course import skeleton_ddp
from ddp_course.authoring.notebook_run import read_notebook, written_files
from ddp_course.lab.probe import printed

SKELETON = ROOT / "ddp_course" / "skeleton_ddp.py"
STEPS = 4
FLAGS = ("--steps", STEPS, "--log-every", 1, "--checkpoint-every", 2, "--tokens-per-update", 2048)
# The same settings in the words of the trainer.
TRAINER = (
    "--preset",
    "tiny",
    "--steps",
    STEPS,
    "--layers",
    2,
    "--heads",
    4,
    "--width",
    128,
    "--warmup-steps",
    1,
    "--learning-rate",
    3e-3,
    "--final-learning-rate",
    3e-4,
    "--tokens-per-update",
    2048,
    "--micro-batch-size",
    8,
    "--validate-every",
    2,
    "--sample-tokens",
    0,
)
PRINTED = 5e-6  # float32 in another order of additions, and losses printed to six decimals


def curves(lines):
    """{"loss": {step: loss}, "validation loss": {step: loss}} from the lines that rank 0 printed."""
    run = SimpleNamespace(lines={0: lines})
    return {name: printed(run, name) for name in ("loss", "validation loss")}


@pytest.fixture(scope="module")
def of_the_trainer(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("trainer") / "run"
    train_in_turn([[str(one) for one in (*TRAINER, "--run-dir", run_dir)]], 1, run_dir.parent)
    return {"loss": metrics(run_dir), "validation loss": metrics(run_dir, "val_loss")}


@pytest.mark.parametrize("nproc", [1, pytest.param(2, marks=pytest.mark.smoke), 4])
def test_its_losses_are_the_trainers(of_the_trainer, nproc):
    run = warm.ranks(SKELETON, *FLAGS, nproc=nproc)
    found = curves(run.lines[0])
    for name, of_step in of_the_trainer.items():
        assert found[name] == pytest.approx(of_step, abs=PRINTED), name
    assert not any(run.lines[rank] for rank in range(1, nproc)), "one rank speaks for all"


def test_stopped_by_sigterm_it_goes_on_to_the_same_numbers(tmp_path):
    flags = (*FLAGS, "--run-dir", tmp_path)
    command = [sys.executable, str(SKELETON), *map(str, flags)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        first = next(line for line in process.stdout if line.startswith("step "))  # it may build the tokens before
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
    assert process.returncode == 75 and "stopped after step" in rest, rest
    resumed = warm.alone(SKELETON, *flags).stdout
    whole = curves(warm.alone(SKELETON, *FLAGS).stdout.splitlines())
    in_parts = curves([first, *rest.splitlines(), *resumed.splitlines()])
    assert in_parts["loss"] == whole["loss"]
    assert in_parts["validation loss"][STEPS] == whole["validation loss"][STEPS]
    assert not list(tmp_path.glob("*.new"))


def test_what_does_not_divide_is_said_once():
    with pytest.raises(AssertionError) as failure:
        warm.ranks(SKELETON, "--tokens-per-update", 1000, nproc=2)
    assert str(failure.value).count("--tokens-per-update 1,000 is not a multiple of the 1,024 of all ranks") == 1


def test_notebook_09_ends_with_it():
    cells = read_notebook(ROOT / "notebooks" / "09_checkpoint_and_resume.ipynb")
    written = {name: text for _, name, text in written_files(cells)}
    assert written["scripts/train_09.py"].rstrip("\n") == SKELETON.read_text().rstrip("\n")


def test_it_is_short_and_knows_only_a_model_and_tokens_of_ours():
    text = SKELETON.read_text()
    assert len(text.splitlines()) <= 200
    assert len(re.findall(r"^(?:from|import) ddp_course", text, re.MULTILINE)) == 2


def test_make_skeleton_writes_a_script_that_runs_and_overwrites_nothing(tmp_path):
    make = ["make", "-C", str(ROOT), "skeleton", f"DIR={tmp_path}"]
    assert subprocess.run(make, capture_output=True, text=True).returncode == 0
    assert "ddp_course" not in (tmp_path / "train.py").read_text()
    printed = warm.alone(tmp_path / "train.py", *FLAGS, "--steps", 1).stdout
    assert "step 1  loss" in printed, printed
    again = subprocess.run(make, capture_output=True, text=True)
    assert again.returncode != 0 and "train.py is there already" in again.stderr


@pytest.mark.parametrize(
    "flags",
    ["--steps 0", "--micro-batch-size 0", "--context -1", "--log-every 0", "--checkpoint-every 0", "--seed -1"]
    + ["--learning-rate nan", "--gradient-clip inf", "--precision bf16", "--validation-windows 0"],
)
def test_a_value_that_makes_no_sense_is_refused_by_its_flag(flags, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["skeleton_ddp.py", *flags.split()])
    with pytest.raises(SystemExit) as refused:
        skeleton_ddp.main()
    error = capsys.readouterr().err.splitlines()[-1]
    assert refused.value.code == 2 and f"argument {flags.split()[0]}: " in error
