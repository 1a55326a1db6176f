"""From a corpus to a post-trained model in one command: tokenizer, pre-training, reward model, GRPO, and a report.

    python -m ddp_course.lab.speedrun                                       # two processes without GPUs, else one a GPU
    python -m ddp_course.lab.speedrun --run-dir runs/mine --nproc 4         # again after a stop: it goes on

Each stage is a launchable script with a run directory of its own in the run's, and loads what the stage before it
left there by name. A preset is a set of sizes; what the stages do is the same in all of them.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import ddp_course
from ddp_course.data.token_file import open_tokens, prepare
from ddp_course.errors import InputError
from ddp_course.lab.launch import RunFailed, torchrun
from ddp_course.lab.machine import default_processes

PACKAGE = Path(ddp_course.__file__).parent
RECORD, REPORT = "speedrun.json", "report.md"

# Sizes, and nothing but sizes: a test holds the presets to the same flags.
PRESETS = {
    "laptop": {
        "tokenizer": {"tokenizer": "bpe", "vocab_size": 2048},
        "pretrain": {"preset": "laptop", "steps": 300, "checkpoint_every": 50},
        "reward": {"preset": "laptop", "steps": 150, "validate_every": 25, "checkpoint_every": 50},
        "grpo": {"preset": "laptop", "steps": 40, "validate_every": 10, "checkpoint_every": 20},
    },
    "short": {
        "tokenizer": {"tokenizer": "bpe", "vocab_size": 2048},
        "pretrain": {"preset": "laptop", "steps": 80, "checkpoint_every": 16},
        "reward": {"preset": "laptop", "steps": 40, "validate_every": 8, "checkpoint_every": 20},
        "grpo": {"preset": "laptop", "steps": 6, "validate_every": 2, "checkpoint_every": 3},
    },
    "tiny": {
        "tokenizer": {"tokenizer": "bytes", "vocab_size": 256},
        "pretrain": {"preset": "tiny", "steps": 40, "checkpoint_every": 10},
        "reward": {"preset": "tiny", "steps": 10, "validate_every": 5, "checkpoint_every": 5},
        "grpo": {"preset": "tiny", "steps": 2, "validate_every": 1, "checkpoint_every": 1},
    },
    "eight_gpus": {
        "tokenizer": {"tokenizer": "bpe", "vocab_size": 50304},
        "pretrain": {"preset": "gpt2", "steps": 2000, "checkpoint_every": 500},
        "reward": {"preset": "gpus", "steps": 1000, "validate_every": 100, "checkpoint_every": 250},
        "grpo": {"preset": "gpus", "steps": 500, "validate_every": 50, "checkpoint_every": 100},
    },
}


@dataclass(frozen=True)
class Stage:
    """A script with its flags; `run_dir` is where it writes, and where the next stage finds what it made."""

    name: str
    script: Path
    flags: list[str]
    run_dir: Path


def stages(run_dir: Path, preset: str, data: str = "stdlib", seed: int = 1) -> list[Stage]:
    """What is launched, in order. Who loads what stands here: by the name of a run directory, and nowhere else."""
    sizes = PRESETS[preset]
    pretrained, rewarded, post_trained = (run_dir / name for name in ("pretrain", "reward", "grpo"))
    builds_on = {
        "pretrain": ("minigpt_ddp.py", {"data": data} | sizes["tokenizer"]),
        "reward": ("reward_ddp.py", {"backbone": f"minigpt:{pretrained}", "pairs": data}),
        "grpo": ("grpo_ddp.py", {"pretrained": pretrained, "data": data, "reward": "model", "reward_model": rewarded}),
    }
    found = []
    for (name, (script, given)), folder in zip(builds_on.items(), (pretrained, rewarded, post_trained), strict=True):
        flags = {**sizes[name], **given, "seed": seed, "run_dir": folder, "resume": "auto"}
        words = [word for flag, value in flags.items() for word in (f"--{flag.replace('_', '-')}", str(value))]
        found.append(Stage(name, Path(os.path.relpath(PACKAGE / script)), words, folder))
    return found


def speedrun(run_dir: str | Path, preset: str = "laptop", *, nproc: int | None = None, data: str = "stdlib",
             seed: int = 1, stop_after: str = "") -> dict:  # fmt: skip
    """Run what is left of the speedrun in `run_dir`; returns its record, which also lies there as speedrun.json.

    The record has the choices ("preset", "data", "seed"), the processes of the last launch ("nproc") and, by stage,
    the "seconds" it took in all its launches and whether it is "finished". A stage that was stopped goes on from its
    newest checkpoint, with any number of processes. `stop_after`: the stage to end with, for whoever wants to look.
    Raises InputError if `run_dir` belongs to a speedrun with other choices, RunFailed if a stage fails.
    """
    run_dir, nproc = Path(run_dir), nproc or default_processes()
    choices = {"preset": preset, "data": data, "seed": seed}
    record = open_record(run_dir, choices) | {"nproc": nproc}
    todo = [("tokenizer", lambda: build_tokenizer(data, PRESETS[preset]["tokenizer"]))]
    for stage in stages(run_dir, preset, data, seed):
        todo.append((stage.name, lambda stage=stage: torchrun(stage.script, *stage.flags, nproc=nproc, timeout=None)))
    for name, work in todo:
        stage = record["stages"].setdefault(name, {"seconds": 0.0, "finished": False})
        if not stage["finished"]:
            print(f"\n{name}", flush=True)
            start = time.monotonic()
            try:
                work()
                stage["finished"] = finished(run_dir, name, preset)
            finally:
                stage["seconds"] += time.monotonic() - start
                write_record(run_dir, record)
        if name == stop_after or not stage["finished"]:
            break
    return record


def build_tokenizer(data: str, chosen: Mapping[str, object]) -> None:
    """Train the tokenizer and tokenize the corpus; both are cached, so a second run takes no time."""
    tokens = open_tokens(prepare(data, chosen["tokenizer"], chosen["vocab_size"]))
    print(f"{tokens.tokenizer.vocab_size:,} tokens in the vocabulary, {len(tokens.train):,} to train on", flush=True)


def finished(run_dir: Path, name: str, preset: str) -> bool:
    """Whether a stage took its last step. One that was asked to stop ends with exit code 0, too, but before that."""
    latest = run_dir / name / "latest"
    if name == "tokenizer":
        return True
    return latest.exists() and latest.read_text().strip() == f"step_{PRESETS[preset][name]['steps']:06d}"


def open_record(run_dir: Path, choices: Mapping[str, object]) -> dict:
    """The record of the speedrun in this folder, or a new one. Raises InputError if its choices were others."""
    path = run_dir / RECORD
    if path.exists():
        record = json.loads(path.read_text())
        for name, ours in choices.items():
            if record[name] != ours:
                raise InputError(f"{run_dir} holds a speedrun with {name} {record[name]!r}, not {ours!r}; "
                                 f"give the same one to go on, or another --run-dir")  # fmt: skip
        return record
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        record = {**choices, "stages": {}}
        write_record(run_dir, record)
    except OSError as error:
        raise InputError(f"cannot write into {run_dir}: {error.strerror}") from None
    return record


def write_record(run_dir: Path, record: Mapping[str, object]) -> None:
    temporary = run_dir / f".{RECORD}.tmp"
    temporary.write_text(json.dumps(record, indent=2) + "\n")
    os.replace(temporary, run_dir / RECORD)


def main(arguments: Iterable[str] | None = None) -> int:
    from ddp_course.lab.speedrun_report import write_report  # figures take a second to load: after --help

    parser = argparse.ArgumentParser(prog="python -m ddp_course.lab.speedrun", description=__doc__.splitlines()[0])
    parser.add_argument("--preset", choices=PRESETS, default="laptop", help="the sizes of all stages")
    parser.add_argument("--run-dir", default=time.strftime("runs/speedrun-%Y%m%d-%H%M%S"), help="to write, or to go on")
    parser.add_argument("--nproc", type=int, help="processes; a GPU each, or two without GPUs, if not given")
    parser.add_argument("--data", default="stdlib", help="stdlib, or a file or folder of Python code")
    parser.add_argument("--seed", type=int, default=1, help="of all stages")
    given = parser.parse_args(arguments)
    try:
        record = speedrun(given.run_dir, given.preset, nproc=given.nproc, data=given.data, seed=given.seed)
        if all(stage["finished"] for stage in record["stages"].values()):
            print(f"\nreport: {write_report(given.run_dir)}")
        else:
            print(f"\nstopped; the same command with --run-dir {given.run_dir} goes on")
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RunFailed:
        print(f"error: a stage failed, see above; with --run-dir {given.run_dir} it goes on from there",
              file=sys.stderr)  # fmt: skip
        return 1
    except KeyboardInterrupt:
        print(f"\ninterrupted; the same command with --run-dir {given.run_dir} goes on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
