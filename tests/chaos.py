"""Faults at random moments of every trainer: after each, `--resume auto` ends with the bits of an undisturbed run.

    make chaos                        200 cases with a new seed, and a table of how they ended
    make chaos ARGS="--cases 20 --seed 7"

A case starts a trainer on two ranks, injects a fault and asserts that it happened, in some cases damages the newest
checkpoint, and resumes with `--resume auto`. The last checkpoint and every logged loss have to equal those of an
undisturbed run, bit by bit. A seed and a number determine a case; `make test` runs five (test_chaos.py).
"""

import argparse
import collections
import itertools
import json
import os
import random
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
import warm
from ddp_doctor.launch.supervise import RUN_VARIABLE, environment_of, sweep, tagged
from disturbance import copy_up_to, flip_a_bit
from finetune_files import make_examples, make_opt
from reward_files import make_backbone, make_pairs
from training_runs import CODE, ROOT, metrics, same

from ddp_course.launcher.nodes import free_port

RANK = Path(__file__).parent / "chaos_rank.py"
STEPS = 6  # with a checkpoint every two
COLLECTIVE_TIMEOUT = 30  # seconds, where a fault is to come; ranks import transformers meanwhile
LONG_FREEZE, SHORT_FREEZE = 60, 1  # seconds: beyond this timeout and within it
TIME_LIMIT = 600  # seconds until every process of a job has to have ended
SIZES = "--preset tiny --validate-every 3 --checkpoint-every 2 --keep-checkpoints 0"
TRAINERS = {
    "minigpt": "minigpt_ddp.py --data {home}/code.py --dropout 0.1 --tokens-per-update 1024 --validation-windows 8 "
    "--sample-tokens 0",
    "reward": "reward_ddp.py --backbone minigpt:{home}/backbone --pairs {home}/pairs --max-tokens 40 --head-width 8 "
    "--most-misses 0 --pairs-per-update 8",
    "grpo": "grpo_ddp.py --pretrained {home}/backbone --data {home}/code.py --prompts-per-update 2 --group-size 2 "
    "--new-tokens 4",
    "puzzles": "puzzles_ddp.py --puzzles 3 --held-out 2 --boards-per-puzzle 2 --boards-per-update 2",
    "finetune": "finetune_ddp.py --model {home}/opt --data {home}/sft.jsonl --examples-per-update 4 "
    "--lora-layers q_proj",
}
KINDS = {  # fault: (act of chaos_rank.py, seconds, number of torchrun agents or None for forked ranks)
    "kill -9 of a rank": ("kill", 0, None),
    "kill -9 of both ranks": ("kill", 0, None),
    "kill -9 of torchrun": ("kill launcher", 0, 1),
    "kill -9 of one of two agents": ("kill launcher", 0, 2),
    "a rank frozen for a moment": ("freeze", SHORT_FREEZE, None),
    "a rank frozen for longer than the timeout": ("freeze", LONG_FREEZE, None),
    "disk full": ("fill the disk", 0, None),
    "clocks an hour apart": ("set the clock", 0, None),
}
MOMENTS = {"meeting": 1, "training": STEPS, "saving": 6, "loading": 1}  # and the number of positions in each
DAMAGES = ("none", "none", "cut short", "one bit flipped", "gone")


@dataclass(frozen=True)
class Case:
    """A fault to inject. `position`: the step, fsync or loading at which it happens, counted from 0."""

    trainer: str
    kind: str
    moment: str
    position: int
    ranks: tuple[int, ...]
    damage: str

    def __str__(self):
        then = "" if self.damage == "none" else f", then the newest checkpoint {self.damage}"
        return f"{self.trainer}: {self.kind}, {self.moment} {self.position}, rank {self.ranks}{then}"


def case(seed: int, number: int) -> Case:
    """The `number`-th case of `seed`."""
    choose = random.Random(f"{seed} {number}")
    kind, moment = choose.choice(list(KINDS)), choose.choice(list(MOMENTS))
    both = kind in ("kill -9 of both ranks", "clocks an hour apart")
    trainer = choose.choice(list(TRAINERS))
    # In most trainers rank 0 alone writes and reads.
    ranks = (0, 1) if both else (0,) if moment in ("saving", "loading") else (choose.randrange(2),)
    return Case(trainer, kind, moment, choose.randrange(MOMENTS[moment]), ranks, choose.choice(DAMAGES))


class Chaos:
    """Runs cases in `folder`, which also holds an undisturbed run of each trainer."""

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "code.py").write_text(CODE)
        make_pairs(folder / "pairs")
        make_backbone(folder / "backbone")
        make_examples(folder)
        make_opt(folder / "opt")

    def undisturbed(self, trainer: str) -> Path:
        run_dir = self.folder / f"{trainer} undisturbed"
        if not run_dir.exists():
            problem = self.train_to_the_end(trainer, run_dir)
            assert not problem, problem
        return run_dir

    def run(self, number: int, case: Case) -> str:
        """The fault in how the case ended, or nothing."""
        whole, run_dir, mark = self.undisturbed(case.trainer), self.folder / f"run {number}", self.folder / f"{number}"
        if case.moment == "loading":  # from the first checkpoint
            copy_up_to(whole, 2, run_dir)
            (run_dir / "latest").unlink()
        try:
            self.train_disturbed(case, run_dir, mark)
            if not fault_happened(mark):
                return "the fault did not happen"
            damage(run_dir, case.damage)
            return self.train_to_the_end(case.trainer, run_dir) or difference(run_dir, whole)
        except AssertionError as error:
            return f"did not end: {str(error)[:500]}"
        finally:
            shutil.rmtree(run_dir, ignore_errors=True)

    def command(self, trainer: str, run_dir: Path, timeout: int) -> list[str]:
        script, *flags = (word.format(home=self.folder) for word in TRAINERS[trainer].split())
        own = ["--steps", STEPS, "--run-dir", run_dir, "--resume", "auto", "--timeout-seconds", timeout]
        return [str(item) for item in (ROOT / "ddp_course" / script, *SIZES.split(), *flags, *own)]

    def train_to_the_end(self, trainer: str, run_dir: Path) -> str:
        """Start or resume a run without a fault. Return why it did not reach its end, or nothing."""
        script, *flags = self.command(trainer, run_dir, TIME_LIMIT)
        done = warm.rank_processes(script, flags, 2, TIME_LIMIT)
        failed = [(item.returncode, item.stderr[-500:]) for item in done if item.returncode]
        return f"did not end well: {failed}" if failed else ""

    def train_disturbed(self, case: Case, run_dir: Path, mark: Path) -> None:
        """Start or resume a run, with the fault of `case`. A rank with the fault writes the file `mark`_RANK."""
        act, seconds, agents = KINDS[case.kind]
        fault = {"act": act, "seconds": seconds, "moment": case.moment, "number": case.position, "ranks": case.ranks}
        chaos = json.dumps(fault | {"mark": str(mark)})
        command = self.command(case.trainer, run_dir, COLLECTIVE_TIMEOUT)
        if agents is None:
            warm.rank_processes(RANK, command, 2, TIME_LIMIT, CHAOS=chaos)
        else:
            self.run_torchrun(agents, [str(RANK), *command], chaos, mark)

    def run_torchrun(self, agents: int, command: list[str], chaos: str, mark: Path) -> None:
        """Run two ranks under one torchrun, or one each under two, until no rank is left.

        The agents may last longer: torch lets one wait five minutes for another that was killed.
        """
        tag, port = uuid.uuid4().hex, free_port()
        where = ["--standalone"] if agents == 1 else ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]
        start = [sys.executable, "-m", "torch.distributed.run", *where, f"--nnodes={agents}"]
        start += [f"--nproc-per-node={2 // agents}", *command]
        options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
        environment = os.environ | {"CHAOS": chaos, RUN_VARIABLE: tag, "OMP_NUM_THREADS": "1"}
        try:
            started = [subprocess.Popen(start, env=environment, **options) for _ in range(agents)]
            deadline = time.monotonic() + TIME_LIMIT
            while ranks_left(tag) if fault_happened(mark) else any(agent.poll() is None for agent in started):
                assert time.monotonic() < deadline, "ranks have not ended"
                time.sleep(0.2)
        finally:
            sweep(tag, grace=0)
            for agent in started:
                agent.wait()


def fault_happened(mark: Path) -> bool:
    return any(mark.parent.glob(f"{mark.name}_*"))


def ranks_left(tag: str) -> bool:
    def is_rank(process):
        try:
            return "LOCAL_RANK" in environment_of(process)
        except psutil.Error:
            return False  # it has just ended

    return any(map(is_rank, tagged(tag)))


def damage(run_dir: Path, how: str) -> None:
    """Damage the newest checkpoint of a run that has two or more."""
    steps = sorted((run_dir / "checkpoints").glob("step_*"))
    if how == "none" or len(steps) < 2:
        return
    path = steps[-1] / "state.pt"
    if how == "gone":
        path.unlink()
    elif how == "cut short":
        os.truncate(path, path.stat().st_size // 2)
    else:
        flip_a_bit(path)


def difference(run_dir: Path, whole: Path) -> str:
    """The first difference, or nothing if both ended with the same bits."""
    for key in ("loss", "val_loss"):
        if metrics(run_dir, key) != metrics(whole, key):
            return f"{key} differs: {metrics(run_dir, key)} and {metrics(whole, key)}"
    ours, theirs = (dict(leaves(last_state(item))) for item in (run_dir, whole))
    if ours.keys() != theirs.keys():
        return f"the last checkpoint has other entries: {sorted(ours.keys() ^ theirs.keys())[:3]}"
    names = [name for name in ours if not same(ours[name], theirs[name])]
    return f"the last checkpoint differs in {sorted(names)[:3]}" if names else ""


def last_state(run_dir: Path) -> dict:
    """The last checkpoint without its settings."""
    state = torch.load(run_dir / "checkpoints" / f"step_{STEPS:06d}" / "state.pt", weights_only=True)
    return {name: part for name, part in state.items() if name != "config"}  # it names the folder


def leaves(part: object, name: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(part, dict | list | tuple):
        items = part.items() if isinstance(part, dict) else enumerate(part)
        yield from itertools.chain.from_iterable(leaves(item, f"{name}/{key}") for key, item in items)
    else:
        yield name, part


def table(seed: int, done: list[tuple[Case, str]]) -> str:
    """Bit-equal ends of all cases, by kind of fault and trainer."""
    cells = collections.defaultdict(list)
    for item, problem in done:
        cells[item.kind, item.trainer].append(not problem)
    good = sum(not problem for _, problem in done)
    lines = [
        f"\nSeed {seed}: after `--resume auto`, {good} of {len(done)} cases ended with the undisturbed run's bits.\n",
        f"| fault | {' | '.join(TRAINERS)} |",
        "|" + "---|" * (len(TRAINERS) + 1),
    ]
    for kind in KINDS:
        counts = [cells[kind, trainer] for trainer in TRAINERS]
        lines.append(f"| {kind} | {' | '.join(f'{sum(item)} of {len(item)}' if item else '' for item in counts)} |")
    return "\n".join([*lines, *(f"\n- {item}: {problem}" for item, problem in done if problem)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--at-once", type=int, default=4, help="cases; most of them wait most of the time")
    arguments = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["OMP_NUM_THREADS"] = "1"  # with more threads, sums have other last bits
    cases, problems = [case(arguments.seed, number) for number in range(arguments.cases)], []
    with tempfile.TemporaryDirectory(prefix="chaos_") as folder, ThreadPoolExecutor(arguments.at_once) as threads:
        chaos = Chaos(Path(folder))
        for trainer in TRAINERS:
            chaos.undisturbed(trainer)
        for item, problem in zip(cases, threads.map(chaos.run, range(arguments.cases), cases), strict=True):
            problems.append(problem)
            print(f"{len(problems):3d}/{arguments.cases}  {item}  {problem or 'bit-equal'}", flush=True)
    done = list(zip(cases, problems, strict=True))
    print(table(arguments.seed, done))
    return int(any(problem for _, problem in done))


if __name__ == "__main__":
    sys.exit(main())
