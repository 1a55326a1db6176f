"""Disturbs runs: waits for a condition, signals ranks, removes checkpoints, damages files, fills a disk."""

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
    """Start a thread that calls `act` once when `condition` is true; it waits for at most 600 seconds."""
    thread = threading.Thread(target=lambda: wait_until(condition, seconds=600) and act())
    thread.start()
    return thread


def signal_ranks(pid: int, number: int) -> None:
    """Send a signal to every rank among the descendants of process `pid`."""
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if "RANK" in process.environ():
                process.send_signal(number)
        except psutil.Error:
            continue


def copy_up_to(run_dir: Path, step: int, target: Path) -> Path:
    """Copy a run directory without the checkpoints after `step`, as a kill leaves it; the metrics go further."""
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
    """No file that this process writes can grow beyond `size` bytes; a write that would fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def contents(folder: Path) -> dict[Path, bytes]:
    """The content of every file below a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def processes_of_this_test() -> list[psutil.Process]:
    """Every process that the running test has started and that has not ended."""
    return tagged(os.environ["DDP_COURSE_TEST"], "DDP_COURSE_TEST")
