"""Climb the equivalence ladder: N processes train as one does, technique by technique, and the gap is measured.

    torchrun --standalone --nproc-per-node=4 ddp_course/ladder_ddp.py --out runs/ladder_4.jsonl
    torchrun --standalone --nproc-per-node=2 ddp_course/ladder_ddp.py --model recurrent --seed 7 --width 64 --steps 20
    torchrun ... ddp_course/ladder_ddp.py --rungs plain,clipping --fault sum_for_mean       # is it noticed?

Exit code 1 if a rung is not as expected. The rungs are in ladder/, one module a topic.
"""

import json
import os
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal, get_args

import torch.distributed as dist

from ddp_course.errors import InputError
from ddp_course.ladder.comparison import Rung, measure
from ddp_course.ladder.setting import Fault, Setting
from ddp_course.parallel import process_group
from ddp_course.parallel.command_line import run
from ddp_course.parallel.sync import from_rank_0

TOPICS = ("batch_rungs", "model_rungs", "format_rungs", "by_hand_rungs", "sharding_rungs", "stopping_rungs")


@dataclass(frozen=True)
class LadderConfig:
    """Measure the gap between N processes and one, for every technique of the course, on tiny models."""

    model: Literal["minigpt", "perceptron", "recurrent"] = "minigpt"
    """What is trained. Rungs that need a model of their own (norms, branches) keep it."""
    seed: int = 1
    """Decides the weights, the text, the windows and the dropout masks."""
    layers: int = 2
    """Blocks of the model."""
    width: int = 16
    """Units of the residual stream; even."""
    context: int = 8
    """Tokens a window."""
    windows: int = 16
    """Windows of a joint batch, at any number of processes."""
    steps: int = 6
    """Updates of each rung."""
    rungs: str = "all"
    """Names of rungs or topics, separated by commas; all: all of them."""
    out: str = ""
    """A file to write the records to, one JSON object a rung; empty: none."""
    fault: str = "none"
    """Make a mistake in the training loop of the several processes: no_all_reduce, sum_for_mean or same_share.
    Several, separated by commas, are made one after the other, to see whether the ladder notices each. Rungs with a
    loop of their own (unused parameters, the scaler) do not make it."""
    timeout_seconds: float = 60
    """How long a collective may wait for the other ranks before the job fails."""

    def __post_init__(self) -> None:
        for name in ("layers", "width", "context", "windows", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} must be at least 1, not {getattr(self, name)}")
        for fault in self.fault.split(","):
            if fault not in get_args(Fault):
                raise ValueError(f"--fault {fault!r} is none of {', '.join(get_args(Fault))}")
        if self.width % 2:
            raise ValueError(f"--width {self.width} does not divide into the 2 attention heads of the ladder's MiniGPT")


def climb(config: LadderConfig) -> None:
    """Measure every chosen rung on all ranks; rank 0 prints a line for each and writes the records."""
    world = process_group.start(config.timeout_seconds, "cpu")
    chosen = from_rank_0(world, lambda: [rung.name for rung in choose(config.rungs)])  # a wrong name: one message
    records = []
    for fault in config.fault.split(","):
        setting = Setting(config.model, config.seed, config.layers, config.width, config.context, config.windows,
                          config.steps, fault)  # fmt: skip
        for rung in (rung for rung in all_rungs() if rung.name in chosen):
            records.append(measure(rung, setting, world) | {"fault": fault})
            world.say(line(records[-1]))
    if config.out and world.is_main:
        Path(config.out).parent.mkdir(parents=True, exist_ok=True)
        Path(config.out).write_text("".join(json.dumps(record) + "\n" for record in records))
    surprises = [record["rung"] for record in records if not record["as_expected"]]
    world.say(f"{len(records)} rungs at world size {world.size}: " + (
        f"not as expected: {', '.join(surprises)}" if surprises else "all as expected"))  # fmt: skip
    dist.barrier()
    # Some rungs have Python communication hooks, whose callbacks run in threads of gloo: its tear-down can abort a
    # process that has finished. Everything is written, so this one goes without.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if surprises else 0)


def all_rungs() -> list[Rung]:
    """Every rung, in the order of the course."""
    return [rung for topic in TOPICS for rung in import_module(f"ddp_course.ladder.{topic}").RUNGS]


def choose(wanted: str) -> list[Rung]:
    """The rungs with these names or topics. Raises InputError for a name that is neither."""
    rungs, names = all_rungs(), [name.strip() for name in wanted.split(",")]
    for name in names:
        if name != "all" and not any(name in (rung.name, rung.topic) for rung in rungs):
            there = ", ".join(rung.name for rung in rungs)
            raise InputError(f"--rungs: {name!r} is no rung and no topic of the ladder; there are: {there}")
    return [rung for rung in rungs if {"all", rung.name, rung.topic} & set(names)]


def line(record: dict) -> str:
    """A rung in one line of text."""
    verdict = record["expected"] if record["as_expected"] else f"NOT {record['expected']}"
    untrue = "".join(f"; not true: {fact}" for fact, true in record["facts"].items() if not true)
    fault = "" if record["fault"] == "none" else f"   ({record['fault']})"
    return (
        f"{record['rung']:<26} gap {record['gap']:.1e}   tolerance {record['tolerance']:.1e}   {verdict}{untrue}{fault}"
    )


if __name__ == "__main__":
    run(climb, {"ladder": LadderConfig()})
