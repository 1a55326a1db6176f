"""With any input a launchable ends with exit code 0, or with one line that says what is wrong.

Hypothesis draws command lines, files and environments; each case runs in a process of its own, prints no traceback,
changes no file but its run's, and leaves no process behind. `make test` runs CASES cases that are always the same;
`make fuzz` draws new ones for FUZZ_SECONDS.
"""

import contextlib
import importlib
import itertools
import json
import os
import random
import shutil
import time
from dataclasses import dataclass, fields, make_dataclass
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
import torch
import warm
from finetune_files import make_examples, make_opt
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from training_runs import CODE, ROOT, merged

from ddp_course.base.errors import InputError
from ddp_course.checkpoint import checkpoint
from ddp_course.checkpoint.run_files import step_of
from ddp_course.ladder_ddp import LadderConfig
from ddp_course.training.command_line import parse
from ddp_course.training.settings import bounds

pytestmark = pytest.mark.skipif(not warm.forked.FORKS, reason="without forks each case would import torch")
CASES = 50  # of the suite, or at a time
MEMORY = 8 << 30  # bytes of addresses of a process, so that too large a size does not exhaust the machine
MATPLOTLIB_WITHOUT_A_HOME = "mkdir -p failed for path", "Matplotlib created a temporary cache directory"  # no errors
TIME_LIMIT = 60  # seconds in which a case computes or stands still; time of other programs does not count
PAIRS = "".join(
    json.dumps({"prompt": f"def f{n}(a):\n", "chosen": f"    return a + {n}\n", "rejected": f"    return a + {n})\n"})
    + "\n"
    for n in range(60)
)
SIZES = "--layers 1 --heads 1 --width 8 --context 48 --tokens-per-update 96 --micro-batch-size 2"
# Flags with which each launchable ends in a moment.
SMALL = {
    "minigpt": f"--preset tiny --data code.py {SIZES} --steps 2 --sample-tokens 2 --validation-windows 2",
    "reward": "--preset tiny --backbone minigpt:minigpt --pairs pairs.jsonl --steps 2 --pairs-per-update 4 "
    "--max-tokens 40",
    "grpo": "--preset tiny --pretrained minigpt --data code.py --steps 2 --prompts-per-update 2 --group-size 2 "
    "--new-tokens 3 --validation-prompts 2",
    "puzzles": "--preset tiny --puzzles 3 --held-out 2 --boards-per-puzzle 2 --boards-per-update 2 --steps 2",
    "parallel": f"--preset tiny --data code.py {SIZES} --steps 2 --validation-windows 2",
    "diloco": f"--preset tiny --data code.py {SIZES} --steps 2 --sync-every 1 --validation-windows 2",
    "experts": f"--preset tiny --data code.py {SIZES} --steps 2 --experts 2 --validation-windows 2",
    "finetune": "--preset tiny --model opt --data sft.jsonl --steps 2 --examples-per-update 2 --lora-layers q_proj",
    "ladder": "--rungs plain --steps 1",
    "speedrun": "--preset tiny --data code.py --nproc 1 --run-dir speedrun",  # finished: it launches none
}
RUNS = ("minigpt", "reward", "grpo", "puzzles", "parallel", "diloco", "experts", "finetune")
PRESETS = {name: importlib.import_module(f"ddp_course.{name}_ddp").PRESETS for name in warm.SCRIPTS if name != "ladder"}
PRESETS |= {"ladder": {"": LadderConfig()}}
FLAGS = {name: type(next(iter(presets.values()))) for name, presets in PRESETS.items()}
FLAGS["speedrun"] = make_dataclass("Flags", [("data", str), ("seed", int), ("preset", str)])
# With large numbers of these a run takes long, which is no error; large numbers of others take memory at most.
WORK = {*"steps sample_tokens passes segments slow_steps fast_steps layers samples sample_pairs held_out".split()}
WORK |= {"boards_per_puzzle", "group_size", "examples_per_update"}
SLOW = {"compile", "wandb", "tensorboard"}
NAMES = ["", *". code.py pairs.jsonl notes odd nothing no/such loop /dev/null /dev/full /dev/zero".split(), "x" * 300]
NAMES += ["a\nb", "\udcff", *"~nobody stdlib computed minigpt: minigpt:odd hf:notes nanochat:notes shards opt".split()]
NAMES += ["dpo.jsonl"]
NAMES += [
    f"{name}{rest}"
    for name in (*RUNS, "speedrun")
    for rest in ("", "/checkpoints/step_000002", "/checkpoints", "/config.json", "/latest", "/notes.txt")
]
CONTENTS = [b"", b"\0", b"7", b"null", b"[]", b"{}", b"{", b'{"step": 1e999}', b"\xff\xfe", b"[" * 100_000, b"\n\n"]
CONTENTS += [b"step_000001", b"question,answer\n1,2\n", b'{"prompt": 1}\n', b"x" * 100_000, b"seed=9\nsteps\n"]
CONTENTS += [b'{"step": 3, "loss": null}\n', b"@odd\n"]
ODD_NUMBERS = [*"0 -1 7.5 1e-30 1e30 1e39 nan -inf many".split(), "", "None", "1e3"]
ODD_NUMBERS += ["9007199254740993", "18446744073709551615", "18446744073709551616", "9" * 5000, "\u0663"]
WORDS = ["@odd", "@nothing", "@/dev/zero", "--no-such", "--help", "word", "--steps", "=", "--", "\udcff"]
LARGE = ["10000", "10000000", "1000000000000"]
ABSURD = ["1000000000000", "1" + 400 * "0", "1e400", "5e-324", "-1", "0", "nan", "inf", "9" * 5000]
ENVIRONMENT = {
    **dict.fromkeys(
        ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT"],
        ["0", "1", "2", "-1", "x", "", "99999999999", "1.5"],
    ),
    "MASTER_ADDR": ["", "127.0.0.1", "no.such.machine.invalid", "a" * 300, "..", "é"],
    "DDP_COURSE_CACHE": ["odd", "notes", "/proc/no", "/dev/null", "x" * 300, "loop"],
    "TORCHELASTIC_ERROR_FILE": ["/proc/no", "notes", ""],
    "TORCHELASTIC_RESTART_COUNT": ["x", "1"],
    "TORCHELASTIC_RUN_ID": ["x"],
    "HOME": ["", "/proc/no"],
    "OMP_NUM_THREADS": ["x", "0", "-3"],
    "COLUMNS": ["1", "x"],
    "LANG": ["C"],
    "PYTHONIOENCODING": ["ascii"],
}


@dataclass
class Case:
    script: str  # one of SMALL
    ranks: int
    flags: list[str]
    environment: dict[str, str]
    odd: bytes  # the content of the file `odd`
    damage: tuple[str, int] | None  # the run whose files are not as they were, and a number that decides how


def value_of(flag, choose) -> str:
    """A value for a flag, right or wrong."""
    kinds = {flag.type, *get_args(flag.type)}
    if get_origin(flag.type) is Literal:
        return choose.choice([*map(str, get_args(flag.type)), "other"])
    if bool in kinds:
        return choose.choice(["true", "false", ""])
    if {int, float} & kinds:
        large = [] if flag.name in WORK else LARGE
        return choose.choice(choose.choice([["1", "2", "3", "0.5"], ODD_NUMBERS, large or ODD_NUMBERS]))
    return choose.choice(NAMES)


def draw_case(choose: random.Random) -> Case:
    script = choose.choice(list(SMALL))
    flags, damaged = SMALL[script].split(), None
    if script != "ladder" and choose.random() < 0.5:
        damaged = choose.choice(["minigpt", script, script]), choose.randrange(2**32)
        if script in RUNS and choose.random() < 0.8:
            flags += ["--run-dir", script, "--resume", "auto", "--steps", choose.choice("23")]
    own = [flag for flag in fields(FLAGS[script]) if flag.name not in SLOW]
    for flag in choose.sample(own, choose.choice([0, 1, 1, 2])):
        form = "{name}={value}" if script in RUNS and choose.random() < 0.2 else "--{dashed}={value}"
        value = value_of(flag, choose)
        flags.append(form.format(name=flag.name, dashed=flag.name.replace("_", "-"), value=value))
    if choose.random() < 0.1:
        flags.append(choose.choice(WORDS))
    environment = {}
    if choose.random() < 0.2:
        names = choose.sample(list(ENVIRONMENT), choose.choice([1, 2]))
        environment = {name: choose.choice(ENVIRONMENT[name]) for name in names}
    ranks = 2 if not environment and script != "speedrun" and choose.random() < 0.1 else 1
    return Case(script, ranks, merged(*flags), environment, choose.choice(CONTENTS), damaged)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with files of every kind and a finished run of each trainer, which a case may name."""
    home = tmp_path_factory.mktemp("home")
    (home / "code.py").write_text(CODE)
    (home / "pairs.jsonl").write_text(PAIRS)
    for folder in ("notes", "shards"):
        (home / folder).mkdir()
    (home / "notes" / "readme").write_text("a note\n")
    (home / "shards" / "train.bin").write_bytes(bytes(2000))
    (home / "loop").symlink_to("loop")
    make_opt(home / "opt")
    make_examples(home)
    for script in RUNS:
        [done] = run(home, Case(script, 1, [*SMALL[script].split(), "--run-dir", script], {}, b"", None))
        assert done.returncode == 0, done.stderr
        (home / script / "notes.txt").write_text("a note\n")
    for stage, script in (("pretrain", "minigpt"), ("reward", "reward"), ("grpo", "grpo")):
        shutil.copytree(home / script, home / "speedrun" / stage)
    stages = dict.fromkeys(("tokenizer", "pretrain", "reward", "grpo"), {"seconds": 1.0, "finished": True})
    record = {"preset": "tiny", "data": "code.py", "seed": 1, "backbone": "", "stages": stages, "nproc": 1}
    (home / "speedrun" / "speedrun.json").write_text(json.dumps(record))
    return home


def run(folder, case):
    scripts, name = ROOT / "ddp_course", case.script
    script = scripts / "speedrun" / "__main__.py" if name == "speedrun" else scripts / f"{name}_ddp.py"
    seconds = 30 if name == "finetune" or case.ranks > 1 else 2  # one rank may begin long after the other
    flags = [*case.flags, f"--timeout-seconds={seconds}"] if name != "speedrun" else case.flags
    with contextlib.chdir(folder):
        if case.ranks > 1:
            return warm.rank_processes(script, flags, case.ranks, TIME_LIMIT, MEMORY)
        return warm.processes(script, flags, [case.environment], TIME_LIMIT, MEMORY)


def damage(run_dir, number):
    """Change, truncate or remove one file of a run. A changed checkpoint gets a matching checksum."""
    choose = random.Random(number)
    kept = "notes.txt", "speedrun.json"
    path = choose.choice(sorted(path for path in run_dir.rglob("*") if path.is_file() and path.name not in kept))
    content, how = path.read_bytes(), choose.choice(["inside", "inside", "content", "content", "folder", "gone"])
    if how in ("folder", "gone"):
        path.unlink()
        if how == "folder":
            path.mkdir()
    elif how == "inside" and path.name == "state.pt":
        state = torch.load(path, weights_only=True)
        change_inside(state, choose)
        shutil.rmtree(path.parent)
        checkpoint.save(path.parent.parent.parent, step_of(path.parent), state)
    elif how == "inside" and path.suffix == ".json":
        settings = json.loads(content)
        change_inside(settings, choose)
        path.write_text(json.dumps(settings, default=str))
    else:
        path.write_bytes(choose.choice([content[: len(content) // 2], content[:7] + b"\xff" + content[8:], *CONTENTS]))


def change_inside(part, choose):
    """Replace one value, at any depth of nested dicts."""
    while isinstance(part, dict) and part:
        inside, name = part, choose.choice(list(part))
        part = part[name]
        if choose.random() < 0.3:
            break
    inside[name] = choose.choice([None, -1, "x", [], {}, torch.zeros(3), 1e300, {"a": 1}, 10**15, "/dev/zero"])


def snapshot(folder, script):
    """{name: content} of the files that must not change: all but empty ones and those of a run of this script."""
    own = "config.json", "metrics.jsonl", "latest", "samples.txt", "checkpoints", "best"
    files = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file() and path.stat().st_size}
    others = [name for name in files if name.parts[:1] != (script,) or name.parts[1] not in own]
    return {name: files[name].read_bytes() for name in others}


def problems(home, folder, case) -> list[str]:
    """Run the case in a temporary copy of `home`. Return what is wrong with how it ended."""
    shutil.copytree(home, folder, symlinks=True)
    try:
        (folder / "odd").write_bytes(case.odd)
        if case.damage:
            name, number = case.damage
            damage(folder / name, number)
        initial = snapshot(folder, case.script)
        ended = run(folder, case)
        final = snapshot(folder, case.script)
    finally:
        shutil.rmtree(folder)
    rung_fails = case.script == "ladder" and any("not as expected" in done.stdout for done in ended)
    faults = [fault for done in ended for fault in faults_of_end(done, rung_fails)]
    if changed := [str(name) for name in initial if initial[name] != final.get(name)]:
        faults.append(f"changed: {', '.join(changed)}")
    return [*faults, *(done.stdout[-2000:] + done.stderr[-6000:] for done in ended)] if faults else []


def faults_of_end(done, rung_fails):
    """Without torchrun each rank ends by itself, so each rank that fails prints one error line.

    rung_fails: a rung of the ladder failed, which its output says instead.
    """
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    others = [
        line
        for line in done.stderr.splitlines()
        if line not in errors and "warning: " not in line and not line.startswith(MATPLOTLIB_WITHOUT_A_HOME)
    ]
    stopped = "stopped after step" in done.stdout  # with the exit code of --exit-code-when-stopped
    if done.returncode not in (0, 1, 2) and not stopped:
        yield f"exit code {done.returncode}"
    if len(errors) != (done.returncode != 0 and not rung_fails and not stopped):
        yield f"exit code {done.returncode} with {len(errors)} lines that begin with error:"
    if others or "Traceback" in done.stdout:
        yield "more than one line was printed"


def test_it_ends_with_one_line_at_most(home, tmp_path):
    number, end = itertools.count(), time.monotonic() + float(os.environ.get("FUZZ_SECONDS", 0))

    @settings(
        max_examples=CASES,
        derandomize="FUZZ_SECONDS" not in os.environ,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=True).map(draw_case))
    def check(case):
        faults = problems(home, tmp_path / str(next(number)), case)
        assert not faults, "\n".join([repr(case), *faults])

    check()
    while time.monotonic() < end:
        check()  # with a new seed


NUMBERS = [
    (script, name)
    for script in PRESETS
    for name, hint in get_type_hints(FLAGS[script]).items()
    if {int, float} & {hint, *get_args(hint)}
]


def absurd_numbers(script, name):
    """(values that are accepted, the sentences with which the others are refused)"""
    accepted, refusals = [], []
    for value in ABSURD:
        try:
            parse(PRESETS[script], merged(*SMALL[script].split(), f"--{name.replace('_', '-')}={value}"))
            accepted.append(value)
        except InputError as error:
            refusals.append(str(error))
    return accepted, refusals


@pytest.mark.parametrize(("script", "name"), NUMBERS)
def test_an_absurd_number_is_refused_in_one_sentence(script, name):
    accepted, refusals = absurd_numbers(script, name)
    assert bounds(get_type_hints(FLAGS[script], include_extras=True)[name]), "each number has bounds"
    assert set(accepted) <= {"1000000000000", "5e-324", "0"}
    assert all(f"--{name.replace('_', '-')}" in text and len(text) < 200 for text in refusals), refusals


@pytest.mark.weekly
@pytest.mark.parametrize(("script", "name"), NUMBERS)
def test_an_absurd_number_that_is_read_runs_or_ends_in_one_sentence(home, tmp_path, script, name):
    """A run of many steps ends after a second."""
    limit = ["--max-seconds", "1"] if script != "ladder" else []
    for value in absurd_numbers(script, name)[0]:
        if (script, name) != ("ladder", "steps"):  # they are work, which has no time budget
            flags = merged(*SMALL[script].split(), *limit, f"--{name.replace('_', '-')}={value}")
            faults = problems(home, tmp_path / value, Case(script, 1, flags, {}, b"", None))
            assert not faults, "\n".join([value, *faults])
