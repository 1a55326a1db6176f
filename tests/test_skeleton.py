"""The script to copy trains as the course's trainer does, at any number of processes, and resumes after a stop."""

import json
import os
import re
import shutil
import subprocess
import sys
from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pytest
import skeleton_runs
import torch
import warm
from disturbance import contents
from torch.utils._python_dispatch import TorchDispatchMode
from training_runs import ROOT, metrics, train_here

from ddp_course import skeleton_ddp
from ddp_course.authoring.answers import answer_cells
from ddp_course.distributed.process_group import World
from ddp_course.grader.exercises import load
from ddp_course.grader.judge import grade
from ddp_course.lab.probe import printed
from ddp_course.models.minigpt import MiniGPT, MiniGPTConfig
from ddp_course.trainers.pretraining import loss_and_target_count

SKELETON = ROOT / "ddp_course" / "skeleton_ddp.py"
STEPS = 4
FLAGS = ("--steps", STEPS, "--log-every", 1, "--checkpoint-every", 2)
FLAGS += ("--tokens-per-update", 3072, "--micro-batch-size", 4)  # 12 micro-batches: of 1, 2, 3 and 4 ranks
SIZES = "--layers 2 --heads 4 --width 128 --validate-every 2 --warmup-steps 1"
TRAINER = (*FLAGS, *SIZES.split(), "--learning-rate", 3e-3, "--final-learning-rate", 3e-4)  # the skeleton's own values
PRINTED = 5e-6  # float32 in another order of additions, and losses printed to six decimals


def curves(lines):
    """{"loss": {step: loss}, "validation loss": {step: loss}} from the lines that rank 0 printed."""
    run = SimpleNamespace(lines={0: lines})
    return {name: printed(run, name) for name in ("loss", "validation loss")}


@pytest.fixture(scope="module")
def trainer_losses(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("trainer")
    train_here(run_dir, *TRAINER)
    return {"loss": metrics(run_dir), "validation loss": metrics(run_dir, "val_loss")}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run of two ranks that has come to its end, and the run."""
    run_dir = tmp_path_factory.mktemp("finished") / "run"
    return run_dir, warm.ranks(SKELETON, *FLAGS, "--run-dir", run_dir, nproc=2)


@pytest.mark.parametrize("nproc", [1, pytest.param(2, marks=pytest.mark.smoke), 3, 4])
def test_its_losses_are_the_trainers(trainer_losses, finished, nproc):
    run = finished[1] if nproc == 2 else warm.ranks(SKELETON, *FLAGS, nproc=nproc)
    losses = curves(run.lines[0])
    for name, of_step in trainer_losses.items():
        assert losses[name] == pytest.approx(of_step, abs=PRINTED), name
    assert not any(run.lines[rank] for rank in range(1, nproc)), "only rank 0 prints"
    assert all(float(re.search(r"  tokens/s (\d+)$", line)[1]) > 0 for line in run.lines[0] if "  loss " in line)


def test_tokens_that_do_not_divide_are_refused_in_one_line():
    run = warm.ranks(SKELETON, "--tokens-per-update", 1000, nproc=2, exit_code=1)
    assert run.lines == {0: ["--tokens-per-update 1,000 is not a multiple of the 1,024 of all ranks"], 1: []}


def test_it_is_short_and_imports_only_a_model_and_tokens_of_ours():
    text = SKELETON.read_text()
    assert len(text.splitlines()) <= 200
    assert len(re.findall(r"^(?:from|import) ddp_course", text, re.MULTILINE)) == 2


def test_make_skeleton_writes_a_script_that_runs_and_overwrites_nothing(tmp_path):
    make = ["make", "-C", str(ROOT), "skeleton", f"DIR={tmp_path}"]
    assert subprocess.run(make, capture_output=True, text=True).returncode == 0
    assert "ddp_course" not in (tmp_path / "train.py").read_text()
    done = warm.single_process(tmp_path / "train.py", *FLAGS, "--steps", 1)
    assert "step 1  loss" in done.stdout, done
    again = subprocess.run(make, capture_output=True, text=True)
    assert again.returncode != 0 and "train.py is there already" in again.stderr


BROKEN = {
    "a file": lambda folder: folder.write_text("a file"),
    "another script's": lambda folder: (folder.mkdir(), (folder / "config.json").write_text("{}")),
    "another checkpoint": lambda folder: (folder.mkdir(), torch.save({"step": 1}, folder / "step_1.pt")),
    "torn": lambda folder: (folder / "step_00000004.pt").write_bytes(
        (folder / "step_00000004.pt").read_bytes()[:-1000]
    ),
    "empty file": lambda folder: (folder / "step_00000004.pt").write_bytes(b""),
    "another model": lambda folder: torch.save({"model": {}, "optimizer": {}}, folder / "step_00000004.pt"),
}


@pytest.fixture(scope="module")
def refusals(finished, tmp_path_factory):
    """A folder for each run that has to be refused, what was in it, and by rank {title: message or exit code}."""
    top = tmp_path_factory.mktemp("refused")
    flags = [*map(str, FLAGS), "--run-dir"]
    runs = {title: [str(top / title), [*flags, str(top / title / "run")]] for title in BROKEN}
    for title, damage in BROKEN.items():
        (top / title).mkdir()
        if title in ("torn", "empty file", "another model"):
            shutil.copytree(finished[0], top / title / "run")
        damage(top / title / "run")
    for rank in range(2):
        runs[f"rank {rank} has none"] = [str(top / f"rank {rank} has none/rank {{rank}}"), [*flags, "run"]]
        (top / f"rank {rank} has none/rank {rank}/run").mkdir(parents=True)
        shutil.copytree(finished[0], top / f"rank {rank} has none/rank {1 - rank}/run")
    (top / "runs.json").write_text(json.dumps(runs))
    initial = {title: contents(top / title) for title in runs}
    return top, initial, warm.ranks(skeleton_runs.__file__, top / "runs.json", nproc=2).results


@pytest.mark.parametrize("damage", BROKEN)
def test_a_folder_that_cannot_be_used_is_refused_and_left_as_it_is(damage, refusals):
    top, initial, codes = refusals
    assert f"--run-dir {top / damage / 'run'} has to be new, or an intact run of this script" in codes[0][damage]
    assert codes[1][damage] == 1 and contents(top / damage) == initial[damage]


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_that_do_not_find_the_same_checkpoint_are_refused(rank, refusals):
    """A folder of a machine's own: of the two, one is empty."""
    codes = [of_rank[f"rank {rank} has none"] for of_rank in refusals[2].values()]
    assert "--run-dir run has to be new" in codes[0] and "step 0; step 4" in codes[0] and codes[1] == 1


def test_of_two_jobs_on_one_folder_the_second_is_refused(tmp_path):
    command = [sys.executable, SKELETON, "--steps", "1000000", "--log-every", "1", "--run-dir", tmp_path / "run"]
    with subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True) as first:
        try:
            next(line for line in first.stdout if line.startswith("step "))
            second = warm.single_process(SKELETON, "--run-dir", tmp_path / "run")
        finally:
            first.kill()
    assert second.returncode == 1 and second.stdout == "" and len(second.stderr.splitlines()) == 1
    assert "that is not in use" in second.stderr and "BlockingIOError" in second.stderr
    assert warm.single_process(SKELETON, *FLAGS, "--run-dir", tmp_path / "run").returncode == 0, (
        "its lock has ended with it"
    )


STOPPED = """
import os, signal
from ddp_course import skeleton_ddp

original, read = skeleton_ddp.micro_batches, []

def micro_batches(tokens, step, *others):
    for batch in original(tokens, step, *others):
        read.append(step)
        if len(read) == 64 + 3 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGTERM)
        yield batch

skeleton_ddp.micro_batches = micro_batches
code = skeleton_ddp.main()
print("micro-batches", len(read))
raise SystemExit(code)
"""


def test_sigterm_is_noticed_within_the_micro_batches_of_a_step(tmp_path):
    """One rank of two is asked in the third of 64 micro-batches: both stop, and the resumed run repeats the step."""
    script = tmp_path / "train.py"
    script.write_text(STOPPED)
    flags = "--steps 2 --log-every 1 --micro-batch-size 1 --context 16 --tokens-per-update 2048".split()
    stopped = warm.ranks(script, *flags, "--run-dir", tmp_path / "run", nproc=2, exit_code=75)
    assert "stopped after step 1; with the same --run-dir it goes on" in stopped.lines[0]
    assert stopped.lines[1] in ([f"micro-batches {64 + n}"] for n in range(3, 9)), "in the next few micro-batches"
    runs = {"resumed": [".", [*flags, "--run-dir", str(tmp_path / "run")]], "whole": [".", flags]}
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    lines = warm.ranks(skeleton_runs.__file__, tmp_path / "runs.json", nproc=2).lines[0]
    resumed, whole = re.findall(r"step 2  loss (\S+)", "\n".join(lines))
    assert resumed == whole


SLOW = """
import os, time
from datetime import timedelta
from ddp_course import skeleton_ddp

original, calls = skeleton_ddp.prepare, []

def prepare(*data):
    calls.append(data)
    if os.environ["RANK"] == "0" and len(calls) == 1:
        time.sleep(45)
    return original(*data)

skeleton_ddp.prepare = prepare
skeleton_ddp.timedelta = lambda seconds=0, hours=0: timedelta(seconds=min(seconds, 30), hours=hours)
raise SystemExit(skeleton_ddp.main())
"""


@pytest.mark.weekly
def test_the_first_tokenization_may_take_longer_than_a_collective(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SLOW)
    warm.ranks(script, *FLAGS, "--steps", 1, nproc=2)


def test_its_save_passes_the_exercise_on_saving(tmp_path):
    """09.1 wants a file of each save, whole, on no rank later than the return. The check is the solution's."""
    [solution] = answer_cells("solutions", "09.1")
    answer = tmp_path / "answer.py"
    answer.write_text(
        f"{solution}\n\nfrom ddp_course import skeleton_ddp\n\n\n"
        "def save(folder, step, state):\n"
        "    Path(folder).mkdir(parents=True, exist_ok=True)\n"
        "    skeleton_ddp.save(Path(folder), step, state, keep=0)\n"
    )
    [verdict] = grade([(load("09.1"), answer)])
    assert verdict.passed, verdict


def test_the_two_newest_checkpoints_stay(finished):
    names = sorted(path.name for path in finished[0].iterdir())
    assert names == ["lock", "step_00000002.pt", "step_00000004.pt"]


class Reads(TorchDispatchMode):
    """Count how often Python waits for a number that a model has computed."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default and args[0].is_floating_point()
        return function(*args, **(kwargs or {}))


def test_a_validation_reads_one_number_and_counts_each_token_once(monkeypatch):
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor: None)
    torch.manual_seed(1)
    model, tokens = MiniGPT(MiniGPTConfig(context=8, layers=1, heads=2, width=16)), np.arange(100) % 7
    options = SimpleNamespace(context=8, micro_batch_size=5, validation_windows=1000)
    with Reads() as reads:
        off = torch.autocast("cpu", enabled=False)
        loss = skeleton_ddp.validate(model, tokens, options, 0, 1, torch.device("cpu"), off)
    text = torch.from_numpy(tokens[:97])  # 12 whole windows
    expected = model(text[:-1].view(12, 8), text[1:].view(12, 8)).item() / 96
    assert loss == pytest.approx(expected, rel=1e-5) and reads.count == 1
    assert model.training


def test_a_validation_of_the_trainers_reads_no_number_before_its_end():
    model, tokens = MiniGPT(MiniGPTConfig(context=8, layers=1, heads=2, width=16)), torch.arange(80).view(10, 8)
    with Reads() as reads:
        loss_and_target_count(model, model, [(tokens, tokens)] * 3, "float32", World(0, 0, 1, torch.device("cpu")))
    assert reads.count == 0


@pytest.mark.parametrize(("local_rank", "code"), [(2, "process 2 has no GPU, here are 2; start 2"), (3, 1)])
def test_more_processes_than_gpus_is_one_sentence(local_rank, code, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["skeleton_ddp.py"])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, str(local_rank))
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "4")
    with pytest.raises(SystemExit) as refused:
        skeleton_ddp.main()
    assert refused.value.code == code


@pytest.mark.parametrize(("gpus", "local_rank"), [(2, 1), (1, 0)], ids=["all_gpus_visible", "virtual_local_rank"])
def test_nccl_gets_the_gpu_of_the_rank(gpus, local_rank, monkeypatch):
    """With `torchrun --virtual-local-rank` each process sees its own GPU alone, and LOCAL_RANK is 0 for all."""

    class Started(Exception):
        pass

    def start(*arguments, **options):
        raise Started(arguments, options)

    monkeypatch.setattr(sys, "argv", ["skeleton_ddp.py"])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.distributed, "init_process_group", start)
    for name, value in {"RANK": 3, "LOCAL_RANK": local_rank, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(Started) as started:
        skeleton_ddp.main()
    timeout = timedelta(seconds=120)
    assert started.value.args == (("nccl",), {"timeout": timeout, "device_id": torch.device("cuda", local_rank)})


def test_ctrl_c_ends_it_while_torch_is_imported(tmp_path):
    (tmp_path / "numpy.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(600)\n"
    )
    command = ["sh", "-c", '"$@"; echo "exit code $?"', "sh", sys.executable, SKELETON]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{os.environ['PYTHONPATH']}"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == ("exit code 130\n", "")


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
