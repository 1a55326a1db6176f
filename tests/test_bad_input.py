"""Bad input, a table: one clear line, from one rank, the right exit code, soon, and nothing overwritten."""

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field

import pytest
import warm
from training_runs import TRAINER, train_alone

from ddp_course.errors import InputError
from ddp_course.lab.launch import RunFailed, torchrun
from ddp_course.minigpt_ddp import PRESETS
from ddp_course.parallel.command_line import parse


@pytest.fixture(scope="module")
def soon():
    """10 seconds, or more where importing torch alone takes long because the machine is busy."""
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True, timeout=120)
    return max(10.0, 5 * (time.monotonic() - start))


@dataclass
class Case:
    """Flags (`{tmp}` is a folder with the files that `files` makes), and what must be said."""

    flags: str
    said: str
    exit_code: int = 1
    files: dict[str, bytes] = field(default_factory=dict)


CASES = {
    "unknown flag": Case("--learning-rat 1", "Unrecognized options: --learning-rat", 2),
    "unknown preset": Case("--preset huge", "invalid choice 'huge' for argument '--preset'", 2),
    "unknown tokenizer": Case("--tokenizer words", "invalid choice 'words' for argument '--tokenizer'", 2),
    "not a number": Case("--steps many", "--steps", 2),
    "no steps": Case("--steps 0", "--steps must be at least 1, not 0", 2),
    "a negative clip, which would climb": Case("--gradient-clip -1", "--gradient-clip must be at least 0, not -1.0", 2),
    "a rate that is no number": Case("--learning-rate nan", "--learning-rate must be at least 0, not nan", 2),
    "dropout of more than all": Case("--dropout 1.5", "--dropout must be a probability from 0 to below 1, not 1.5", 2),
    "a validation on nothing": Case("--validation-windows 0", "--validation-windows must be at least 1, not 0", 2),
    "no time at all": Case("--max-seconds 0", "--max-seconds must be above 0, not 0.0", 2),
    "heads that do not divide": Case("--heads 3", "--width 64 does not divide into --heads 3", 2),
    "tokens per update that do not divide": Case(
        "--tokens-per-update 1000", "is not a multiple of 1 rank(s) x 8 windows x 64 tokens = 512; nearest that are: "
        "512 or 1,024"),
    "tokens per update too small": Case("--tokens-per-update 100", "nearest that are: 512"),
    "a vocabulary that bytes do not have": Case("--vocab-size 300", "256"),
    "float16 on a CPU": Case("--precision float16 --device cpu", "float16 needs a GPU"),
    "missing data": Case("--data {tmp}/nothing.txt", "nothing.txt"),
    "empty data": Case("--data {tmp}/empty.txt", "empty", files={"empty.txt": b""}),
    "an empty folder": Case("--data {tmp}/folder", "folder", files={"folder/.keep": b""}),
    "binary data": Case("--data {tmp}/picture.txt", "picture.txt", files={"picture.txt": b"\x89PNG\x00\x01\xff" * 99}),
    "a context longer than the corpus": Case(
        "--data {tmp}/short.txt --context 4096 --tokens-per-update 32768", "4096",
        files={"short.txt": b"short\n" * 99}),
    "a missing checkpoint": Case("--resume {tmp}/step_000001", "there is no such checkpoint folder"),
    "a folder that is no checkpoint": Case("--resume {tmp}/folder", "is missing", files={"folder/readme": b""}),
    "resume auto without a run": Case("--resume auto --run-dir=", "--resume auto needs --run-dir"),
    "a run directory below a file": Case("--run-dir {tmp}/file/run", "cannot write into the run directory",
                                         files={"file": b""}),
    "a run directory that holds a run": Case("--run-dir {tmp}/run", "already holds a run",
                                             files={"run/metrics.jsonl": b'{"step": 1, "loss": 2.0}\n'}),
}  # fmt: skip
if sys.platform == "linux":
    CASES["a read-only run directory"] = Case("--run-dir /proc/run", "cannot write into the run directory /proc/run")


@pytest.mark.parametrize("name", CASES)
def test_one_clear_line(tmp_path, name, soon):
    case = CASES[name]
    for path, content in case.files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    before = snapshot(tmp_path)
    flags = case.flags.format(tmp=tmp_path).split()
    # Later flags win, so a case may name its own run directory.
    defaults = ["--preset", "tiny", "--steps", "1", "--run-dir", str(tmp_path / "new")]
    start = time.monotonic()
    done = warm.alone(TRAINER, *defaults, *flags)
    seconds = time.monotonic() - start
    assert done.returncode == case.exit_code, done.stderr
    assert case.said in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("error: ") and "Traceback" not in done.stdout
    assert snapshot(tmp_path) == before, "something was written or overwritten"
    assert seconds < soon


def test_tensorboard_that_is_not_installed_is_named_at_once(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="--tensorboard needs a package that is not installed: pip install tensor"):
        parse(PRESETS, ["--tensorboard"])


def snapshot(folder):
    """Every file but an empty new run directory, with its contents."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["unknown flag", "tokens per update that do not divide", "missing data"])
def test_one_of_several_ranks_speaks(tmp_path, name, soon):
    flags = CASES[name].flags.format(tmp=tmp_path).replace("1000", "1001").split()
    with pytest.raises(RunFailed) as failed:
        torchrun(TRAINER, "--preset", "tiny", "--run-dir", tmp_path / "run", *flags, nproc=2, quiet=True, timeout=60)
    run = failed.value.run
    spoken = [line for lines in run.lines.values() for line in lines if line.startswith("error: ")]
    assert len(spoken) == 1 and spoken[0] in str(failed.value)
    assert not any("Traceback" in line for lines in run.lines.values() for line in lines)
    assert run.seconds < soon


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("finished")
    assert train_alone(run_dir, "--steps", 2).returncode == 0
    return run_dir


@pytest.mark.parametrize("damage", ["truncated", "foreign", "other sizes", "other data"])
def test_a_checkpoint_that_cannot_be_used_is_refused(finished_run, tmp_path, damage):
    source = tmp_path / "run"
    shutil.copytree(finished_run, source)
    (checkpoint,) = (source / "checkpoints").iterdir()
    flags, said = (), "truncated or damaged"
    if damage == "truncated":
        os.truncate(checkpoint / "state.pt", 1000)
    elif damage == "foreign":
        shutil.rmtree(checkpoint)
        from ddp_course.parallel import checkpoint as checkpoints

        checkpoint = checkpoints.save(source, 2, {"weights": [1.0]})
        said = "it is not a checkpoint of this course"
    elif damage == "other sizes":
        flags, said = ("--layers", 3), "it has layers 2, this run has 3"
    else:
        (tmp_path / "other.txt").write_text("something else\n" * 999)
        flags, said = ("--data", tmp_path / "other.txt"), "data and tokenizer"
    before = snapshot(source)
    done = train_alone(tmp_path / "new", "--resume", checkpoint, *flags)
    assert done.returncode == 1 and said in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert snapshot(source) == before and not (tmp_path / "new" / "metrics.jsonl").exists()


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root on Linux to make a small disk")
def test_a_full_disk_ends_the_run_and_spares_what_is_saved(tmp_path):
    """Room for one checkpoint and not for two: the second fails on rank 0, and both ranks leave."""
    script = f"""
mount -t tmpfs -o size=2500k tmpfs {tmp_path} || exit 77
{sys.executable} {TRAINER} --preset tiny --steps 4 --checkpoint-every 1 --keep-checkpoints 0 --run-dir {tmp_path}/run
echo "exit code $?" && ls -A {tmp_path}/run/checkpoints
"""
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, timeout=60)
    if done.returncode == 77:
        pytest.skip("this machine does not allow mounting")
    assert "exit code 1\nstep_000001\n" in done.stdout, done.stdout + done.stderr
    assert "cannot write checkpoint" in done.stderr and "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
