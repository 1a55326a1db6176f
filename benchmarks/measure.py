"""Helpers of all comparisons: alternating runs, ratios with their spread, and rows of RESULTS.md."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import psutil
from workload import token_folder

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TRAINER = ROOT / "ddp_course" / "minigpt_ddp.py"
T = TypeVar("T")


class Table:
    """Rows: what was compared, the median ratio with its range, what was to be reached, and whether it was."""

    def __init__(self) -> None:
        self.rows: list[str] = []

    def ratio(self, what: str, ratios: list[float], goal: float | None = None, *, at_most: bool = False) -> None:
        middle = statistics.median(ratios)
        reached = "" if goal is None else "yes" if (middle <= goal if at_most else middle >= goal) else "no"
        wanted = "" if goal is None else f"{'≤' if at_most else '≥'} {goal:g}"
        self.rows.append(f"| {what} | {middle:.2f} | {min(ratios):.2f} to {max(ratios):.2f} | {wanted} | {reached} |")
        print(self.rows[-1], flush=True)

    def figure(self, what: str, text: str) -> None:
        self.rows.append(f"| {what} | {text} | | | |")
        print(self.rows[-1], flush=True)


def in_turns(sides: Iterable[T], rounds: int) -> Iterator[T]:
    """Each side once per round; each round begins with another side, so that none always finds the warmer machine."""
    sides = list(sides)
    for number in range(rounds):
        first = number % len(sides)
        yield from sides[first:] + sides[:first]


def divide(ours: list[float], theirs: list[float]) -> list[float]:
    return [our / their for our, their in zip(ours, theirs, strict=True)]


def one_thread() -> dict[str, str]:
    return {"OMP_NUM_THREADS": "1", "TOKENS": token_folder()}


def start_on_two(command: list[str]) -> psutil.Popen:
    """Start `torchrun command` on 2 processes of one thread; what it prints is dropped."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *command]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return psutil.Popen(launch, env=os.environ | one_thread(), **quiet)


def seconds_until(command: list[str], done: Callable[[], bool] = lambda: False) -> float:
    """Seconds from starting `torchrun command` on 2 processes until `done()` or its end; waits for the end anyway."""
    start = time.perf_counter()
    process = start_on_two(command)
    while process.poll() is None and not done():
        time.sleep(0.005)
    seconds = time.perf_counter() - start
    if process.wait(timeout=120) != 0:
        raise RuntimeError(f"{' '.join(command)} ended with exit code {process.returncode}")
    return seconds
