"""Waits for a run, signals its ranks, cuts its checkpoints back, damages its files."""

import contextlib
import os
import resource
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from ddp_doctor.launch.supervise import tagged


def wait_until(condition: Callable[[], object], seconds: float = 150) -> bool:
    """Whether `condition` came true within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def when(condition: Callable[[], object], act: Callable[[], object]) -> threading.Thread:
    """A thread that waits for `condition`, for as long as the jobs here may take, then acts once."""
    thread = threading.Thread(target=lambda: wait_until(condition, seconds=600) and act())
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


@contextlib.contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file that this process writes grows beyond `size` bytes: a write fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file below a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def processes_of_this_test() -> list[psutil.Process]:
    """Every process that the running test has started and that has not ended."""
    return tagged(os.environ["DDP_COURSE_TEST"], "DDP_COURSE_TEST")
