"""Bad input ends in one clear line from one rank, with the right exit code, and nothing is overwritten."""

import importlib
import io
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field

import pytest
import warm
from disturbance import contents
from training_runs import TRAINER, arguments, train_here

from ddp_course.base.errors import InputError
from ddp_course.base.standard_output import StandardOutput
from ddp_course.checkpoint import checkpoint as checkpoints
from ddp_course.launcher import RunFailed, torchrun
from ddp_course.minigpt_ddp import PRESETS
from ddp_course.training.command_line import parse

FLAG_ERRORS = {  # launchable: flags: the message of the parser
    "minigpt": {
        "--learning-rat 1": "unrecognized arguments: --learning-rat 1",
        "--seed 3 --learning-rate 1 seed=5": "--seed was given twice: 3 and 5; give it once",
        "--local-rank=0": "start the job with torchrun --nproc-per-node=N",  # as torch.distributed.launch adds it
        "@/dev/zero": "cannot read the settings in /dev/zero",
        "--preset huge": "argument --preset: invalid choice: 'huge' (choose from",
        "--steps many": "--steps must be a whole number, not 'many'",
        "--steps 0": "--steps must be at least 1, not 0",
        "--gradient-clip -1": "--gradient-clip must be at least 0, not -1.0",
        "--dropout 1": "--dropout must be from 0 to below 1, not 1.0",
        "--validation-windows 0": "--validation-windows must be at least 1, not 0",
        "--max-seconds 0": "--max-seconds must be above 0, not 0.0",
        "--learning-rate 1e39": "--learning-rate must be a number of at most 1e+30, not 1e+39",  # no float32
        "--warmup-steps 9007199254740993": "--warmup-steps must be at most 2**53",
        "--seed 18446744073709551616": "--seed must be below 2**64, not 18446744073709551616",
        "--timeout-seconds 1e9": "--timeout-seconds must be from 0.1 to",  # more than a socket holds
        "--preset tiny --heads 3": "--width 64 does not divide into --heads 3",
    },
    "diloco": {
        "--sync-every 0": "--sync-every must be at least 1, not 0",
        "--sync-every 1.5": "--sync-every must be a whole number, not '1.5'",
        "--outer-lr 0": "--outer-lr must be above 0, not 0.0",
        "--outer-momentum 1": "--outer-momentum must be from 0 to below 1, not 1.0",
        "--inner lion": "argument --inner: invalid choice: 'lion'",
        "--precision float16": "argument --precision: invalid choice: 'float16'",
    },
    "experts": {
        "--experts 0": "--experts must be at least 1, not 0",
        "--experts 4 --experts-per-token 5": "--experts-per-token 5 is more than --experts 4",
        "--ep 0": "--ep must be at least 1, not 0",
        "--precision float16": "argument --precision: invalid choice: 'float16'",
    },
    "parallel": {
        "--tp 0": "--tp must be at least 1, not 0",
        "--precision float64 --param-dtype bfloat16": "--param-dtype bfloat16 needs --precision float32, that of the "
        "main weights, not float64",
        "--precision auto": "argument --precision: invalid choice: 'auto'",
        "--schedule zbv": "argument --schedule: invalid choice: 'zbv'",
        "--ep 2": "--ep 2 needs --experts",
        "--experts 4 --ep 3": "--experts 4 is not a multiple of --ep 3: each rank has whole experts",
        "--experts 4 --experts-per-token 5": "--experts-per-token 5 is more than --experts 4",
        "--experts 0": "--experts must be at least 1, not 0",
    },
    "grpo": {
        "--temperature 1e-40": "--temperature must be from 0.001 to 1,000, not 1e-40",
        "--temperature inf": "--temperature must be a number of at most",
        "--beta 1e-9": "--beta must be 0 or from 1e-06 to 1000",
    },
}


@pytest.mark.parametrize(
    ("launchable", "flags"), [(name, flags) for name in FLAG_ERRORS for flags in FLAG_ERRORS[name]]
)
def test_a_wrong_flag_is_one_line_on_every_rank(monkeypatch, launchable, flags):
    """Rank 1 prints it if rank 0 is slow."""
    messages, presets = [], importlib.import_module(f"ddp_course.{launchable}_ddp").PRESETS
    for rank in "0", "1":
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(InputError) as error:
            parse(presets, flags.split())
        messages.append(str(error.value))
    assert messages[0] == messages[1] and FLAG_ERRORS[launchable][flags] in messages[0] and "\n" not in messages[0]


@dataclass
class Case:
    """Flags, and the message and exit code that they must end in. `{tmp}` is the folder with the files of `files`."""

    flags: str
    message: str
    exit_code: int = 1
    files: dict[str, bytes] = field(default_factory=dict)


CASES = {
    "unknown flag": Case("--learning-rat 1", "unrecognized arguments: --learning-rat 1", 2),
    "a flag twice in a file": Case(
        "@{tmp}/settings", "--steps was given twice: 3 and 5; give it once", 2, {"settings": b"steps=3\nsteps=5\n"}
    ),
    "a model that no machine holds": Case("--width 10000000", "GiB of memory, each of 1 here has"),
    "layers that no machine holds": Case("--layers 1099511627776", "GiB of memory, each of 1 here has"),
    "a batch that no machine holds": Case(
        "--tokens-per-update 1125899906842624 --micro-batch-size 8", "needs at least 131,07"
    ),
    "a tokenizer whose name is too long": Case("--tokenizer " + 300 * "x", 40 * "x" + "': File name too long"),
    "tokens per update that do not divide": Case(
        "--tokens-per-update 1000",
        "is not a multiple of 1 rank(s) x 8 windows x 64 tokens = 512; nearest that are: 512 or 1,024",
    ),
    "tokens per update too small": Case("--tokens-per-update 100", "nearest that are: 512"),
    "float16 on a CPU": Case("--precision float16 --device cpu", "float16 needs a GPU"),
    "missing data": Case("--data {tmp}/nothing.txt", 'nothing.txt": it is neither a file or folder that exists'),
    "a context longer than the corpus": Case(
        "--data {tmp}/short.txt --context 4096 --tokens-per-update 32768",
        "context 4096 needs at least 4097 training tokens, the corpus has 571",
        files={"short.txt": b"short\n" * 99},
    ),
    "a missing checkpoint": Case("--resume {tmp}/step_000001", "there is no such checkpoint folder"),
    "a folder that is no checkpoint": Case("--resume {tmp}/folder", "is missing", files={"folder/readme": b""}),
    "resume auto without a run": Case("--resume auto --run-dir=", "--resume auto needs --run-dir"),
    "a run directory below a file": Case(
        "--run-dir {tmp}/file/run", "cannot write into the run directory", files={"file": b""}
    ),
    "a run directory that holds a run": Case(
        "--run-dir {tmp}/run",
        "already holds a run",
        files={
            "run/metrics.jsonl": b'{"step": 1, "loss": 2.0}\n',
            "run/config.json": b'{"run_dir": "run", "resume": "no", "world_size": 1}',
        },
    ),
}
if sys.platform == "linux":
    CASES["a read-only run directory"] = Case("--run-dir /proc/run", "cannot write into the run directory /proc/run")


@pytest.mark.parametrize("name", CASES)
def test_one_clear_line(tmp_path, name):
    case = CASES[name]
    for path, content in case.files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    initial = contents(tmp_path)
    flags = case.flags.format(tmp=tmp_path).split()
    defaults = {"--preset": "tiny", "--steps": "1", "--run-dir": str(tmp_path / "new")}
    defaults = [word for name in defaults if name not in case.flags for word in (name, defaults[name])]
    done = warm.single_process(TRAINER, *defaults, *flags)
    assert done.returncode == case.exit_code, done.stderr
    assert case.message in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("error: ") and "Traceback" not in done.stdout
    assert contents(tmp_path) == initial, "something was written or overwritten"


def test_letters_that_the_output_cannot_encode_are_escaped():
    """A model generates any letter; an output may take ASCII only."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print("\u00e9 \udcff", file=StandardOutput(stream), flush=True)
    assert stream.buffer.getvalue() == b"\\xe9 \\udcff\n"


def test_a_name_with_a_line_break_is_shown_in_the_one_line(tmp_path):
    done = warm.single_process(TRAINER, "--preset", "tiny", "--run-dir", tmp_path / "new", "--data=a\nb\x1b[1m")
    assert done.returncode == 1 and done.stderr.startswith(r'error: no corpus "a\nb\x1b[1m"'), done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_tracker_that_is_not_installed_is_named_at_once(monkeypatch, name):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=f"--{name} needs a package that is not installed: pip install {name}"):
        parse(PRESETS, [f"--{name}"])


@pytest.mark.usefixtures("warm_launches")
@pytest.mark.parametrize("name", ["unknown flag", "tokens per update that do not divide", "missing data"])
def test_one_of_several_ranks_prints_the_error(tmp_path, name):
    rank_timeout = 3600  # longer than the run may take, so that no rank stops waiting for the other
    flags = CASES[name].flags.format(tmp=tmp_path).split()
    with pytest.raises(RunFailed) as failed:
        words = ["--preset", "tiny", "--run-dir", tmp_path / "run", "--timeout-seconds", rank_timeout, *flags]
        torchrun(TRAINER, *words, nproc=2, quiet=True, timeout=600)
    run = failed.value.run
    errors = [line for lines in run.lines.values() for line in lines if line.startswith("error: ")]
    assert len(errors) == 1 and errors[0] in str(failed.value)
    assert not any("Traceback" in line for lines in run.lines.values() for line in lines)


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("finished")
    train_here(run_dir, "--steps", 2)
    return run_dir


@pytest.mark.parametrize("damage", ["truncated", "foreign", "other sizes", "other data"])
def test_a_checkpoint_that_cannot_be_used_is_refused(finished_run, tmp_path, damage):
    source = tmp_path / "run"
    shutil.copytree(finished_run, source)
    (checkpoint,) = (source / "checkpoints").iterdir()
    flags, message = (), "truncated or damaged"
    if damage == "truncated":
        os.truncate(checkpoint / "state.pt", 1000)
    elif damage == "foreign":
        shutil.rmtree(checkpoint)
        checkpoint = checkpoints.save(source, 2, {"weights": [1.0]})
        message = "expected a checkpoint with model, optimizer, scaler, found one with weights"
    elif damage == "other sizes":
        flags, message = ("--width", 128), "it has width 64, this run has 128"
    else:
        (tmp_path / "other.txt").write_text("something else\n" * 999)
        flags, message = ("--data", tmp_path / "other.txt"), "data and tokenizer"
    initial = contents(source)
    done = warm.single_process(TRAINER, *arguments(tmp_path / "new", "--resume", checkpoint, *flags))
    assert done.returncode == 1 and message in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert contents(source) == initial and not list((tmp_path / "new").glob("*"))


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root on Linux to make a small disk")
def test_a_full_disk_ends_the_run_and_keeps_the_saved_checkpoint(tmp_path):
    """The disk has room for one checkpoint and not for two."""
    script = f"""
mount -t tmpfs -o size=2500k tmpfs {tmp_path} || exit 77
{sys.executable} {TRAINER} --preset tiny --steps 4 --checkpoint-every 1 --keep-checkpoints 0 --run-dir {tmp_path}/run
echo "exit code $?" && ls -A {tmp_path}/run/checkpoints
"""
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, timeout=600)
    if done.returncode == 77:
        pytest.skip("this machine does not allow mounting")
    assert "exit code 1\nstep_000001\n" in done.stdout, done.stdout + done.stderr
    assert "cannot write checkpoint" in done.stderr and "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_metrics_that_cannot_be_written_end_both_ranks_without_a_traceback(tmp_path):
    """Rank 0 alone writes metrics, so it ends while rank 1 is in a collective. There is no torchrun to end rank 1."""
    script = tmp_path / "full.py"
    script.write_text(f"""
import sys
sys.argv[0] = {str(TRAINER)!r}
from ddp_course import minigpt_ddp
from ddp_course.base.errors import write_errors
from ddp_course.checkpoint import run_directory
from ddp_course.training import command_line

def full(self, record):
    if record["step"] == 3 and self.world.is_main:
        with write_errors(self.path), open("/dev/full", "w") as file:
            file.write("x")
run_directory.RunDirectory.log = full
command_line.run(minigpt_ddp.train, minigpt_ddp.PRESETS)
""")
    first, second = warm.rank_processes(script, arguments(tmp_path / "run"), nproc=2, timeout=600)
    assert first.returncode == second.returncode == 1
    assert first.stderr == f"error: cannot write {tmp_path}/run: No space left on device\n"
    assert second.stderr.startswith("error: rank 1 ends: it has lost the connection to another rank, which has ended")
    assert len(second.stderr.splitlines()) == 1, second.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_an_output_that_cannot_be_written_stops_the_run_after_a_checkpoint(tmp_path):
    """As with `> log` on a full disk, or `| head`."""
    words = arguments(tmp_path / "run", *"--steps 100000 --checkpoint-every 0 --validate-every 0".split())
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, TRAINER, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=240
        )
    assert done.returncode == 1
    assert done.stderr == "error: cannot write to the standard output: No space left on device\n"
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 1
