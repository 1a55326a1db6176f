"""Helpers of all comparisons: run scripts, take turns, divide, and write the rows of RESULTS.md."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import psutil
from workload import token_folder

from ddp_course.launcher import torchrun

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TRAINER = ROOT / "ddp_course" / "minigpt_ddp.py"
T = TypeVar("T")


class Table:
    """Rows: what was compared, the median ratio with its range, the goal, and whether it was reached."""

    def __init__(self) -> None:
        self.rows: list[str] = []

    def ratio(self, what: str, ratios: list[float], goal: float | None = None, *, at_most: bool = False) -> None:
        """Add a row. goal: the least median, or with `at_most` the largest."""
        median = statistics.median(ratios)
        bound = reached = ""
        if goal is not None:
            bound = f"{'≤' if at_most else '≥'} {goal:g}"
            reached = "yes" if (median <= goal if at_most else median >= goal) else "no"
        self._add(f"| {what} | {median:.2f} | {min(ratios):.2f} to {max(ratios):.2f} | {bound} | {reached} |")

    def figure(self, what: str, text: str) -> None:
        """Add a row with a text in place of a ratio."""
        self._add(f"| {what} | {text} | | | |")

    def _add(self, row: str) -> None:
        self.rows.append(row)
        print(row, flush=True)


def in_turns(items: Iterable[T], rounds: int) -> Iterator[T]:
    """Each item once per round; each round begins with the next one, so that none always runs on the warmer machine."""
    items = list(items)
    for number in range(rounds):
        first = number % len(items)
        yield from items[first:] + items[:first]


def divide(numerators: list[float], denominators: list[float]) -> list[float]:
    return [numerator / denominator for numerator, denominator in zip(numerators, denominators, strict=True)]


def one_thread() -> dict[str, str]:
    """The environment of a rank: one thread, and the folder of the tokens."""
    return {"OMP_NUM_THREADS": "1", "TOKENS": token_folder()}


def run_script(script: str, *arguments: object, nproc: int = 2, env: Mapping[str, object] | None = None) -> dict:
    """Run a script of this folder under torchrun and return the JSON object that its rank 0 prints.

    env: by default `one_thread()`. Raises RunFailed if a rank fails, RunTimedOut after 15 minutes.
    """
    run = torchrun(HERE / script, *arguments, nproc=nproc, timeout=900, quiet=True, env=env or one_thread())
    return run.results[0]


def commit(*folders: str) -> str:
    """The commit of the repository, with a remark if these folders have changes that are not committed."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    changes = git("status", "--porcelain", "--", *folders)
    name = git("rev-parse", "--short", "HEAD") or "unknown"
    return name + (" with changes that are not committed" if changes else "")


def start_on_two(command: list[str]) -> psutil.Popen:
    """Start `torchrun command` on 2 processes of one thread; their output is dropped."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *command]
    return psutil.Popen(launch, env=os.environ | one_thread(), stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)


def seconds_until(command: list[str], done: Callable[[], bool] = lambda: False) -> float:
    """Seconds from the start of `torchrun command` on 2 processes until `done()`, or its end, for which this waits.

    Raises RuntimeError if its exit code is not 0.
    """
    start = time.perf_counter()
    process = start_on_two(command)
    while process.poll() is None and not done():
        time.sleep(0.005)
    seconds = time.perf_counter() - start
    if process.wait(timeout=120) != 0:
        raise RuntimeError(f"{' '.join(command)} ended with exit code {process.returncode}")
    return seconds
