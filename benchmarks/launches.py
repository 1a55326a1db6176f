"""Measure launches: seconds to the first step, memory, exit codes."""

import os
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import psutil
from ddp_doctor.launch.supervise import RUN_VARIABLE, sweep
from measure import HERE, TRAINER, Table, divide, in_turns, one_thread, seconds_until, start_on_two

from ddp_course.launcher import torchrun
from ddp_course.launcher.nodes import free_port

TINY = ["--preset", "tiny", "--sample-tokens", "0", "--run-dir"]


def compare_start_up(table: Table, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "empty.py"
        empty.write_text("")
        seconds = {"ours": [], "nothing": []}
        for side in in_turns(seconds, rounds):
            if side == "nothing":
                seconds[side].append(seconds_until([str(empty)]))
                continue
            run_dir = Path(folder) / f"run{len(seconds[side])}"
            command = [str(TRAINER), "--preset", "tiny", "--steps", "1", "--run-dir", str(run_dir)]
            seconds[side].append(seconds_until(command, (run_dir / "metrics.jsonl").exists))
    table.ratio(
        "seconds from torchrun to the first step, over an empty script, 2 processes",
        divide(seconds["ours"], seconds["nothing"]),
        2.0,
        at_most=True,
    )


def compare_preparation(table: Table, rounds: int) -> None:
    """CPU seconds of a run of one step, of two ranks and torchrun, with seldom collections of garbage and without.

    CPU seconds hardly depend on what else the machine does.
    """
    seconds: dict[str, list[float]] = {"seldom": [], "often": []}
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(in_turns(seconds, rounds)):
            script = TRAINER if name == "seldom" else HERE / "collecting_trainer.py"
            start = os.times()
            seconds_until([str(script), *TINY, f"{folder}/{number}", "--steps", "1"])
            end = os.times()
            seconds[name].append(sum(end[2:4]) - sum(start[2:4]))
    ratios = divide(seconds["often"], seconds["seldom"])
    table.ratio("CPU seconds of a run of one step without collect_garbage_seldom, over with it", ratios)


def compare_memory(table: Table) -> None:
    """Peak memory of a rank on a small and on a large corpus: the token file is mapped, not read."""
    sizes = {"a corpus of 1 MB": 1, "a corpus of 200 MB": 200}
    with tempfile.TemporaryDirectory() as folder:
        peaks = {}
        for name, megabytes in sizes.items():
            corpus = Path(folder) / f"{megabytes}.txt"
            line = "".join(f"{number} is a number, {number * number} is its square\n" for number in range(25_000))
            corpus.write_text(line * max(1, megabytes * 1_000_000 // len(line)))
            flags = ["--preset", "tiny", "--data", str(corpus), "--run-dir", str(Path(folder) / f"run{megabytes}")]
            prepare_first = ["--steps", "1", "--run-dir", str(Path(folder) / f"first{megabytes}")]
            seconds_until([str(TRAINER), *flags[:4], *prepare_first])
            peaks[name] = peak_memory([str(TRAINER), *flags, "--steps", "60", "--sample-tokens", "0"])
    for name, ranks in peaks.items():
        text = ", ".join(f"rank {rank} {peak / 2**20:.0f} MiB" for rank, peak in sorted(ranks.items()))
        table.figure(f"peak memory of its own, tiny preset, {name}", text)
    small, large = peaks.values()
    table.ratio(
        "peak memory of a rank of its own, the large corpus over the small one",
        [large[rank] / small[rank] for rank in large],
        1.1,
        at_most=True,
    )


def peak_memory(command: list[str]) -> dict[int, int]:
    """Rank -> the most memory in bytes that it was seen to hold for itself, of two ranks.

    Pages of mapped files are left out: the ranks share them, and the system takes them back when it needs to.
    """
    process = start_on_two(command)
    peaks: dict[int, int] = {}
    while process.poll() is None:
        for child in process.children():
            try:
                rank = child.environ().get("RANK")
                if rank is not None:
                    memory = child.memory_info()
                    own = memory.rss - getattr(memory, "shared", 0)
                    peaks[int(rank)] = max(peaks.get(int(rank), 0), own)
            except psutil.Error:
                continue
        time.sleep(0.02)
    return peaks


def count_clean_launches(table: Table, launches: int) -> None:
    """How many launches of the tiny preset end with exit code 0: gloo can abort a finished run."""
    clean = 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(launches):
            where = Path(folder) / str(number)
            run = torchrun(TRAINER, *TINY, where, nproc=2, check=False, quiet=True, timeout=120, env=one_thread())
            clean += run.exit_code == 0
            if run.exit_code:
                print(f"launch {number}: exit codes {run.exit_codes}, {run.failure}", *run.launcher_lines, sep="\n")
    table.figure("launches of the tiny preset on 2 processes that end with exit code 0", f"{clean} of {launches}")
    for meeting in ("c10d", "static"):
        with tempfile.TemporaryDirectory() as folder:
            ends = [by_two_agents(meeting, [str(TRAINER), *TINY, f"{folder}/{n}"]) for n in range(launches)]
        what = f"the same by two agents of one process each ({meeting}): both exit with 0"
        table.figure(what, f"{ends.count([0, 0])} of {launches}")


def by_two_agents(meeting: str, command: list[str]) -> list[int]:
    """The exit codes of two torchruns, as two machines have them, that meet at one free port.

    Raises subprocess.TimeoutExpired where one has not ended two minutes after the other began.
    """
    port = free_port()
    where = {
        "c10d": ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"],
        "static": ["--master-addr=127.0.0.1", f"--master-port={port}"],
    }[meeting]
    start = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", *where]
    tag = uuid.uuid4().hex
    environment = os.environ | one_thread() | {RUN_VARIABLE: tag}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    agents = []
    try:
        for node in ("0", "1"):
            rank = [f"--node-rank={node}"] if meeting == "static" else []
            agents.append(subprocess.Popen([*start, *rank, *command], env=environment, **quiet))
        return [agent.wait(timeout=120) for agent in agents]
    finally:
        sweep(tag, grace=0)
