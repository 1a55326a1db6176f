"""The stages of a speedrun: their scripts and flags, and the loop that runs those that are not finished.

The run directory has a folder per stage; a stage loads the checkpoint of an earlier stage from the folder of that
name. The presets differ in sizes only.
"""

import contextlib
import functools
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ddp_course.base.atomic_file import replacing
from ddp_course.base.errors import InputError, write_errors
from ddp_course.base.json_file import read_object
from ddp_course.checkpoint import checkpoint, run_files
from ddp_course.data.token_file import open_tokens, prepare
from ddp_course.launcher import RunStopped, torchrun
from ddp_course.launcher.cores import default_processes
from ddp_course.post_training.backbones import prepare_backbone

PACKAGE = Path(__file__).parents[1]
RECORD, REPORT = run_files.SPEEDRUN, "report.md"

# Sizes only: a test checks that all presets have the same flags.
PRESETS = {
    "laptop": {
        "tokenizer": {"tokenizer": "bpe", "vocab_size": 2048},
        "pretrain": {"preset": "laptop", "steps": 300, "checkpoint_every": 50, "validate_every": 50, "log_every": 10},
        "reward": {"preset": "laptop", "steps": 150, "validate_every": 25, "checkpoint_every": 50},
        "grpo": {"preset": "laptop", "steps": 40, "validate_every": 10, "checkpoint_every": 20},
    },
    "short": {  # a small model, which reads more tokens per second
        "tokenizer": {"tokenizer": "bpe", "vocab_size": 2048},
        "pretrain": {"preset": "tiny", "steps": 600, "checkpoint_every": 100, "validate_every": 100, "log_every": 20},
        "reward": {"preset": "laptop", "steps": 60, "validate_every": 15, "checkpoint_every": 30},
        "grpo": {"preset": "laptop", "steps": 16, "validate_every": 4, "checkpoint_every": 8},
    },
    "tiny": {
        "tokenizer": {"tokenizer": "bytes", "vocab_size": 256},
        "pretrain": {"preset": "tiny", "steps": 40, "checkpoint_every": 10, "validate_every": 10, "log_every": 1},
        "reward": {"preset": "tiny", "steps": 10, "validate_every": 5, "checkpoint_every": 5},
        "grpo": {"preset": "tiny", "steps": 2, "validate_every": 1, "checkpoint_every": 1},
    },
    "eight_gpus": {
        "tokenizer": {"tokenizer": "bpe", "vocab_size": 50304},
        "pretrain": {"preset": "gpt2", "steps": 2000, "checkpoint_every": 500, "validate_every": 250, "log_every": 10},
        "reward": {"preset": "gpus", "steps": 1000, "validate_every": 100, "checkpoint_every": 250},
        "grpo": {"preset": "gpus", "steps": 500, "validate_every": 50, "checkpoint_every": 100},
    },
}


@dataclass(frozen=True)
class Stage:
    """A script with its flags. It writes its checkpoints into `run_dir`, from which a later stage loads them."""

    name: str
    script: Path
    flags: list[str]
    run_dir: Path


def stages(run_dir: Path, preset: str, data: str = "stdlib", seed: int = 1, backbone: str = "") -> list[Stage]:
    """The stages in launch order. Which stage loads which is decided here alone, by the names of run directories.

    `backbone`: a pre-trained model, as `prepare_backbone` names it; with one nothing is pre-trained.
    """
    sizes = PRESETS[preset]
    pretrained = run_dir / "pretrain"
    base = {"reward": backbone or f"minigpt:{pretrained}", "grpo": backbone or pretrained}
    judge = {"reward": "model", "reward_model": run_dir / "reward"}
    builds_on = {
        "pretrain": ("minigpt_ddp.py", {"data": data} | sizes["tokenizer"]),
        "reward": ("reward_ddp.py", {"backbone": base["reward"], "pairs": data}),
        "grpo": ("grpo_ddp.py", {"pretrained": base["grpo"], "data": data} | judge),
    }
    if backbone:
        del builds_on["pretrain"]
    stages = []
    for name, (script, inputs) in builds_on.items():
        folder = run_dir / name
        flags = {**sizes[name], **inputs, "seed": seed, "run_dir": folder, "resume": "auto"}
        words = [word for flag, value in flags.items() for word in (f"--{flag.replace('_', '-')}", str(value))]
        stages.append(Stage(name, Path(os.path.relpath(PACKAGE / script)), words, folder))
    return stages


def speedrun(
    run_dir: str | Path,
    preset: str = "laptop",
    *,
    nproc: int | None = None,
    data: str = "stdlib",
    seed: int = 1,
    stop_after: str = "",
    backbone: str = "",
    quiet: bool = False,
) -> dict:
    """Run the unfinished stages of the speedrun in `run_dir`; returns its record, also written to speedrun.json.

    The record has the choices ("preset", "data", "seed", "backbone"), the processes of the last launch ("nproc") and,
    by stage, the "seconds" it took in all its launches and whether it is "finished". A stage that was stopped resumes
    from its newest checkpoint, with any number of processes. `stop_after`: the last stage to run. `backbone`: the name
    of a pre-trained model, see `full_name`; the run then begins with the reward model. `quiet`: print the names of the
    stages, and nothing that their ranks print.
    Raises InputError if `run_dir` belongs to a speedrun with other choices, RunFailed if a stage fails.
    """
    run_dir, nproc = Path(run_dir), default_processes() if nproc is None else nproc
    base = full_name(backbone)
    choices = {"preset": preset, "data": data, "seed": seed, "backbone": backbone}
    record = open_record(run_dir, choices) | {"nproc": nproc}
    actions = {} if base else {"tokenizer": lambda: build_tokenizer(data, PRESETS[preset]["tokenizer"])}
    for stage in stages(run_dir, preset, data, seed, base):
        launch = functools.partial(torchrun, stage.script, *stage.flags, nproc=nproc, timeout=None, quiet=quiet)
        actions[stage.name] = launch
    for name, run_stage in actions.items():
        stage = record["stages"].setdefault(name, {"seconds": 0.0, "finished": False})
        if not stage["finished"]:
            print(f"\n{name}", flush=True)
            start = time.monotonic()
            try:
                with contextlib.suppress(RunStopped):
                    run_stage()
                stage["finished"] = is_finished(run_dir, name, preset)
            finally:
                stage["seconds"] += time.monotonic() - start
                write_record(run_dir, record)
        if name == stop_after or not stage["finished"]:
            break
    return record


def full_name(backbone: str) -> str:
    """The name of a backbone with its prefix minigpt:, hf: or nanochat:, as both scripts need it; "" for none.

    A name without a prefix is a checkpoint or run directory of ours. Raises InputError if there is no such backbone.
    """
    return prepare_backbone(backbone if ":" in backbone else f"minigpt:{backbone}") if backbone else ""


def build_tokenizer(data: str, sizes: Mapping[str, object]) -> None:
    """Train the tokenizer and tokenize the corpus; both are cached, so a second run takes no time."""
    tokens = open_tokens(prepare(data, sizes["tokenizer"], sizes["vocab_size"]))
    print(f"{tokens.tokenizer.vocab_size:,} tokens in the vocabulary, {len(tokens.train):,} to train on", flush=True)


def is_finished(run_dir: Path, name: str, preset: str) -> bool:
    """Whether a stage has saved the checkpoint of its last step. A stage that was stopped has not."""
    if name == "tokenizer":
        return True
    latest = checkpoint.read_name(run_dir / name, checkpoint.LATEST)
    return latest is not None and run_files.step_of(latest) == PRESETS[preset][name]["steps"]


def open_record(run_dir: Path, choices: Mapping[str, object]) -> dict:
    """The record of the speedrun in this folder, or a new one. Raises InputError if its choices were others."""
    path = run_dir / RECORD
    with write_errors(f"into {run_dir}"):
        run_dir.mkdir(parents=True, exist_ok=True)  # before the checks: nowhere/.. exists only if nowhere does
    if path.exists():
        record = read_object(path)
        if not isinstance(record.get("stages"), dict):
            raise InputError(f"{path} is not the record of a speedrun, it names no stages; give another --run-dir")
        for name, stage in record["stages"].items():
            kinds = {"seconds": float, "finished": bool}
            if not isinstance(stage, dict) or any(type(stage.get(key)) is not kind for key, kind in kinds.items()):
                raise InputError(
                    f"{path} does not say how many seconds the stage {name!r} took and whether it is "
                    "finished; give another --run-dir"
                )
        for name, choice in choices.items():
            if (recorded := record.get(name)) != choice:
                raise InputError(
                    f"{run_dir} holds a speedrun with {name} {recorded!r}, not {choice!r}; "
                    f"give the same one to go on, or another --run-dir"
                )
        return record
    if (run_dir / REPORT).exists():
        raise InputError(f"{run_dir / REPORT} belongs to no speedrun of this folder; give another --run-dir")
    record = {**choices, "stages": {}}
    with write_errors(f"into {run_dir}"):
        write_record(run_dir, record)
    return record


def write_record(run_dir: Path, record: Mapping[str, object]) -> None:
    with replacing(run_dir / RECORD) as file:
        file.write(json.dumps(record, indent=2) + "\n")
