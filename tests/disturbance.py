"""Waits for a run, signals its ranks, cuts its checkpoints back, damages its files."""

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil


def wait_until(condition: Callable[[], object], seconds: float = 150) -> bool:
    """Whether `condition` came true within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def when(condition: Callable[[], object], act: Callable[[], object]) -> threading.Thread:
    """A thread that waits for `condition`, then acts once."""
    thread = threading.Thread(target=lambda: wait_until(condition) and act())
    thread.start()
    return thread


def signal_ranks(pid: int, number: int) -> None:
    """Send a signal to the ranks that the process has started."""
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if "RANK" in process.environ():
                process.send_signal(number)
        except psutil.Error:
            continue


def copy_up_to(run_dir: Path, step: int, target: Path) -> Path:
    """A run directory as a kill right after `step` leaves it: later checkpoints never written, metrics beyond it."""
    shutil.copytree(run_dir, target)
    for path in target.glob("*/step_*"):
        if int(path.name.removeprefix("step_")) > step:
            shutil.rmtree(path)
    return target


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file below a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
