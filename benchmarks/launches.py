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
        seconds: dict[str, list[float]] = {"ours": [], "empty": []}
        for number, script in enumerate(in_turns(seconds, rounds)):
            if script == "empty":
                seconds[script].append(seconds_until([str(empty)]))
            else:
                run_dir = Path(folder) / str(number)
                command = [str(TRAINER), "--preset", "tiny", "--steps", "1", "--run-dir", str(run_dir)]
                seconds[script].append(seconds_until(command, (run_dir / "metrics.jsonl").exists))
    table.ratio(
        "seconds from torchrun to the first step, over an empty script, 2 processes",
        divide(seconds["ours"], seconds["empty"]),
        2.0,
        at_most=True,
    )


def compare_preparation(table: Table, rounds: int) -> None:
    """CPU seconds of a run of one step, of two ranks and torchrun, with and without `collect_garbage_seldom`.

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
    peaks = {}
    with tempfile.TemporaryDirectory() as folder:
        for megabytes in (1, 200):
            corpus = f"{folder}/{megabytes}.txt"
            lines = "".join(f"{number} is a number, {number * number} is its square\n" for number in range(25_000))
            Path(corpus).write_text(lines * max(1, megabytes * 1_000_000 // len(lines)))
            command = [str(TRAINER), "--preset", "tiny", "--data", corpus, "--sample-tokens", "0", "--run-dir"]
            seconds_until([*command, f"{corpus}.first_run", "--steps", "1"])  # makes the token files
            peaks[f"a corpus of {megabytes} MB"] = peak_memory([*command, f"{corpus}.run", "--steps", "60"])
    for name, peak_by_rank in peaks.items():
        text = ", ".join(f"rank {rank} {peak / 2**20:.0f} MiB" for rank, peak in sorted(peak_by_rank.items()))
        table.figure(f"peak memory of its own, tiny preset, {name}", text)
    small, large = peaks.values()
    table.ratio(
        "peak memory of a rank of its own, the large corpus over the small one",
        [large[rank] / small[rank] for rank in large],
        1.1,
        at_most=True,
    )


def peak_memory(command: list[str]) -> dict[int, int]:
    """Run `torchrun command` on 2 processes: rank -> the largest sampled size of its own memory, in bytes.

    Pages of mapped files are left out: the ranks share them, and the system takes them back when it needs to.
    """
    process = start_on_two(command)
    peaks: dict[int, int] = {}
    while process.poll() is None:
        for child in process.children():
            try:
                rank, memory = child.environ().get("RANK"), child.memory_info()
            except psutil.Error:  # it has ended meanwhile
                continue
            if rank is not None:
                own = memory.rss - getattr(memory, "shared", 0)
                peaks[int(rank)] = max(peaks.get(int(rank), 0), own)
        time.sleep(0.02)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with exit code {process.returncode}")
    return peaks


def count_clean_launches(table: Table, launches: int) -> None:
    """Count the launches of the tiny preset that end with exit code 0: gloo can abort a finished run."""
    clean = 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(launches):
            run_dir = f"{folder}/{number}"
            run = torchrun(TRAINER, *TINY, run_dir, nproc=2, check=False, quiet=True, timeout=120, env=one_thread())
            if run.exit_code == 0:
                clean += 1
            else:
                print(f"launch {number}: exit codes {run.exit_codes}, {run.failure}", *run.launcher_lines, sep="\n")
    table.figure("launches of the tiny preset on 2 processes that end with exit code 0", f"{clean} of {launches}")
    for rendezvous in ("c10d", "static"):
        with tempfile.TemporaryDirectory() as folder:
            codes = [run_two_agents(rendezvous, [str(TRAINER), *TINY, f"{folder}/{n}"]) for n in range(launches)]
        what = f"the same by two agents of one process each ({rendezvous}): both exit with 0"
        table.figure(what, f"{codes.count([0, 0])} of {launches}")


def run_two_agents(rendezvous: str, command: list[str]) -> list[int]:
    """Run `command` under two torchruns of one process each, as on two machines, and return their exit codes.

    Raises subprocess.TimeoutExpired if one runs for more than two minutes.
    """
    port, tag = free_port(), uuid.uuid4().hex
    endpoint = {
        "c10d": ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"],
        "static": ["--master-addr=127.0.0.1", f"--master-port={port}"],
    }[rendezvous]
    agent = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", *endpoint]
    environment = os.environ | one_thread() | {RUN_VARIABLE: tag}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    agents = []
    try:
        for node in ("0", "1"):
            rank = [f"--node-rank={node}"] if rendezvous == "static" else []
            agents.append(subprocess.Popen([*agent, *rank, *command], env=environment, **quiet))
        return [agent.wait(timeout=120) for agent in agents]
    finally:
        sweep(tag, grace=0)
