"""`make bench`: measure what the README claims about speed, and write RESULTS.md.

Timings on shared machines drift, so nothing is compared across runs: the sides of every comparison take turns, each
round gives one ratio, and the table shows the median ratio with the smallest and the largest.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import torch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))

from workload import WORKLOAD, token_folder  # noqa: E402

from ddp_course.lab.launch import torchrun  # noqa: E402
from ddp_course.lab.machine import describe, matmul_peak  # noqa: E402
from ddp_course.models.minigpt import flops_per_token, parameter_count  # noqa: E402

TRAINER = ROOT / "ddp_course" / "minigpt_ddp.py"
WARM_UP = 2  # steps at the start of a run that are not counted
PEERS = {"plain": "plain_trainer.py", "Accelerate": "accelerate_trainer.py", "Fabric": "fabric_trainer.py"}


class Table:
    """The rows of RESULTS.md: what was compared, the ratio with its spread, what was to be reached."""

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


def tokens_per_second(who: str, nproc: int, steps: int) -> float:
    """One run of one trainer; the median over its steps, warm-up left out."""
    if who != "ours":
        run = torchrun(HERE / PEERS[who], "--steps", steps, nproc=nproc, timeout=900, quiet=True, env=one_thread())
        seconds = run.results[0]["seconds"][WARM_UP:]
        return WORKLOAD.tokens_per_update(nproc) / statistics.median(seconds)
    with tempfile.TemporaryDirectory() as folder:
        return statistics.median(our_speeds(Path(folder) / "run", nproc, steps)[WARM_UP:])


def our_speeds(run_dir: Path, nproc: int, steps: int) -> list[float]:
    import json

    flags = ["--run-dir", run_dir, *WORKLOAD.flags(nproc, steps)]
    torchrun(TRAINER, *flags, nproc=nproc, timeout=900, quiet=True, env=one_thread())
    records = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [record["tokens_per_s"] for record in records if "tokens_per_s" in record]


def one_thread() -> dict[str, str]:
    return {"OMP_NUM_THREADS": "1", "TOKENS": token_folder()}


def compare_trainers(table: Table, rounds: int, steps: int) -> None:
    for nproc in (1, 2):
        speeds = {who: [] for who in ("ours", *PEERS)}
        for number in range(rounds):
            # Every second round the other way round: whoever comes later does not always find a warmer machine.
            for who in list(speeds)[:: 1 if number % 2 == 0 else -1]:
                speeds[who].append(tokens_per_second(who, nproc, steps))
        processes = "1 process" if nproc == 1 else f"{nproc} processes"
        table.ratio(f"our tokens/s over the plain way, {processes}", divide(speeds["ours"], speeds["plain"]), 2.0)
        better = max(("Accelerate", "Fabric"), key=lambda who: statistics.median(speeds[who]))
        for who in ("Accelerate", "Fabric"):
            goal = 1.0 if who == better else None
            table.ratio(f"our tokens/s over {who}, {processes}", divide(speeds["ours"], speeds[who]), goal)


def compare_world_sizes(table: Table, rounds: int, steps: int) -> None:
    one, two, peak = [], [], []
    for _ in range(rounds):
        one.append(tokens_per_second("ours", 1, steps))
        peak.append(single_thread_peak())
        two.append(tokens_per_second("ours", 2, steps))
    table.ratio("efficiency of 2 processes: tokens/s of a process, over 1 process alone",
                [t / (2 * o) for o, t in zip(one, two, strict=True)], 0.95)  # fmt: skip
    share = torchrun(HERE / "exposed_communication.py", nproc=2, timeout=900, quiet=True, env=one_thread()).results[0]
    table.ratio("share of a step in exposed communication, 2 processes", share["shares"])
    flops = flops_per_token(WORKLOAD.shape())
    table.ratio("achieved FLOP/s of training over the measured bfloat16 matrix-product peak, 1 thread",
                [speed * flops / top for speed, top in zip(one, peak, strict=True)])  # fmt: skip


def single_thread_peak() -> float:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return matmul_peak(torch.bfloat16)
    finally:
        torch.set_num_threads(threads)


def compare_start_up(table: Table, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "empty.py"
        empty.write_text("")
        ours, nothing = [], []
        for number in range(rounds):
            run_dir = Path(folder) / f"run{number}"
            nothing.append(seconds_until([str(empty)], lambda: False))
            ours.append(seconds_until([str(TRAINER), "--preset", "tiny", "--steps", "1", "--run-dir", str(run_dir)],
                                      lambda path=run_dir / "metrics.jsonl": path.exists()))  # fmt: skip
    table.ratio("seconds from torchrun to the first step, over an empty script, 2 processes",
                divide(ours, nothing), 2.0, at_most=True)  # fmt: skip


def seconds_until(command: list[str], done: Callable[[], bool]) -> float:
    """Seconds from starting `torchrun command` until `done()` or its end; waits for the end in any case."""
    start = time.perf_counter()
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *command]
    process = subprocess.Popen(launch, env=os.environ | one_thread(), stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)  # fmt: skip
    while process.poll() is None and not done():
        time.sleep(0.005)
    seconds = time.perf_counter() - start
    if process.wait(timeout=120) != 0:
        raise RuntimeError(f"{' '.join(command)} ended with exit code {process.returncode}")
    return seconds


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
            seconds_until([str(TRAINER), *flags[:4], *prepare_first], lambda: False)
            peaks[name] = peak_memory([str(TRAINER), *flags, "--steps", "60", "--sample-tokens", "0"])
    for name, ranks in peaks.items():
        text = ", ".join(f"rank {rank} {peak / 2**20:.0f} MiB" for rank, peak in sorted(ranks.items()))
        table.figure(f"peak memory of its own, tiny preset, {name}", text)
    small, large = peaks.values()
    table.ratio("peak memory of a rank of its own, the large corpus over the small one",
                [large[rank] / small[rank] for rank in large], 1.1, at_most=True)  # fmt: skip


def peak_memory(command: list[str]) -> dict[int, int]:
    """Rank -> the most memory in bytes that it was seen to hold for itself, of two ranks.

    Pages of mapped files are left out: the ranks share them, and the system takes them back when it needs to.
    """
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *command]
    process = psutil.Popen(launch, env=os.environ | one_thread(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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
            flags = ["--preset", "tiny", "--steps", 3, "--sample-tokens", 0, "--run-dir", Path(folder) / str(number)]
            run = torchrun(TRAINER, *flags, nproc=2, check=False, quiet=True, timeout=120, env=one_thread())
            clean += run.exit_code == 0
    table.figure("launches of the tiny preset on 2 processes that end with exit code 0", f"{clean} of {launches}")


def divide(ours: list[float], theirs: list[float]) -> list[float]:
    return [our / their for our, their in zip(ours, theirs, strict=True)]


def report(table: Table, rounds: int, steps: int) -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    dirty = " with changes that are not committed" if git("status", "--porcelain", "--", "ddp_course") else ""
    shape = WORKLOAD.shape()
    machine = describe()
    rows = "\n".join(table.rows)
    return f"""# Benchmark results

Written by `make bench`, never by hand. Every figure is a ratio within one run: the two sides take turns, {rounds}
rounds, and the table shows the median and the range of the rounds' ratios. Another machine gives other ratios.

- Machine: {machine.cpu}, {machine.physical_cores} cores; {machine.os}; GPUs: {", ".join(machine.gpus) or "none"};
  bfloat16 units: {", ".join(machine.bf16_instructions) or "none"}
- PyTorch {machine.torch}, Python {machine.python}; commit {git("rev-parse", "--short", "HEAD") or "unknown"}{dirty}
- Model: {shape.layers} layers, {shape.width} wide, context {shape.context}, vocabulary {shape.vocab_size}:
  {parameter_count(shape):,} parameters. A process takes {WORKLOAD.accumulation_steps} micro-batches of
  {WORKLOAD.micro_batch_size} windows an update, on one thread; {steps} updates a run, the first {WARM_UP} not counted.

| what | median | range | to reach | reached |
|---|---|---|---|---|
{rows}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns of each comparison")
    parser.add_argument("--steps", type=int, default=6, help="updates a run")
    parser.add_argument("--launches", type=int, default=50, help="launches that must end with exit code 0")
    arguments = parser.parse_args()
    table = Table()
    compare_trainers(table, arguments.rounds, arguments.steps)
    compare_world_sizes(table, arguments.rounds, arguments.steps)
    compare_start_up(table, arguments.rounds)
    compare_memory(table)
    count_clean_launches(table, arguments.launches)
    (HERE / "RESULTS.md").write_text(report(table, arguments.rounds, arguments.steps))
    print(f"\nwritten: {HERE / 'RESULTS.md'}")


if __name__ == "__main__":
    main()
