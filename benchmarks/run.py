"""`make bench`: measure what the README claims about speed, and write RESULTS.md, one section a comparison.

Timings on shared machines drift, so nothing is compared across runs: the sides of every comparison take turns, each
round gives one ratio, and the table shows the median ratio with the smallest and the largest. With --only, one
section is measured again and the others stay as they were: each says when it was measured, and where.
"""

import argparse
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from launches import compare_memory, compare_preparation, compare_start_up, count_clean_launches  # noqa: E402
from measure import HERE, ROOT, Table  # noqa: E402
from reward_pairs import compare_reward  # noqa: E402
from sampling_speed import compare_sampling  # noqa: E402
from sparse_or_dense import compare_sparse  # noqa: E402
from techniques import compare_checkpoints, compare_sharding, compare_wrappers  # noqa: E402
from trainers import WARM_UP, compare_trainers, compare_with_nanogpt, compare_world_sizes  # noqa: E402
from workload import Workload  # noqa: E402

from ddp_course.lab.gpu_record import folded, read_record  # noqa: E402
from ddp_course.lab.machine import describe  # noqa: E402
from ddp_course.models.minigpt import parameter_count  # noqa: E402

RESULTS = HERE / "RESULTS.md"
SECTIONS = {
    "Other trainers": lambda table, how: compare_trainers(table, how.rounds, how.steps),
    "Beside nanoGPT": lambda table, how: compare_with_nanogpt(table, how.rounds, how.steps),
    "Two processes": lambda table, how: compare_world_sizes(table, how.rounds, how.steps),
    "Wrappers": lambda table, how: compare_wrappers(table, how.rounds),
    "Sharding": lambda table, how: compare_sharding(table, how.rounds),
    "Checkpoints": lambda table, how: compare_checkpoints(table, how.rounds),
    "Reward model": lambda table, how: compare_reward(table, how.rounds),
    "Sampling": lambda table, how: compare_sampling(table, how.rounds),
    "Sparse embedding": lambda table, how: compare_sparse(table, how.rounds),
    "Start-up": lambda table, how: compare_start_up(table, how.rounds),
    "Preparation": lambda table, how: compare_preparation(table, how.rounds),
    "Memory": lambda table, how: compare_memory(table),
    "Clean launches": lambda table, how: count_clean_launches(table, how.launches),
}


def introduction() -> str:
    work = Workload()
    config = work.model_config()
    return f"""# Benchmark results

Written by `make bench`, never by hand. Every figure is a ratio within one run: the two sides take turns, and the
tables show the median and the range of the rounds' ratios. Another machine gives other ratios.

Where nothing else is said, the model has {config.layers} layers of {config.width} units, context {config.context} and
{config.vocab_size} tokens: {parameter_count(config):,} parameters. A process takes {work.accumulation_steps} \
micro-batches of {work.micro_batch_size} windows an
step, on one thread; the first {WARM_UP} steps of a run are not counted.

{gpu_section()}
"""


def gpu_section() -> str:
    """The record of `make gpu`, folded, or a sentence."""
    record = read_record("peers")
    return folded(record) if record else "Run on CPUs so far: `make gpu` measures on a machine that has one."


def section(title: str, table: Table, how: argparse.Namespace) -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    machine = describe()
    dirty = " with changes that are not committed" if git("status", "--porcelain", "--", "ddp_course") else ""
    rows = "\n".join(table.rows)
    return f"""## {title}

{machine.cpu}, {machine.physical_cores} cores, bfloat16 units: {", ".join(machine.bf16_instructions) or "none"}; \
GPUs: {", ".join(machine.gpus) or "none"}; {machine.os}; PyTorch {machine.torch}, Python {machine.python};
commit {git("rev-parse", "--short", "HEAD") or "unknown"}{dirty}; {how.rounds} rounds of {how.steps} steps.

| what | median | range | to reach | reached |
|---|---|---|---|---|
{rows}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=SECTIONS, nargs="+", default=list(SECTIONS), help="sections to measure")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each comparison")
    parser.add_argument("--steps", type=int, default=5, help="steps a run")
    parser.add_argument("--launches", type=int, default=50, help="launches that must end with exit code 0")
    how = parser.parse_args()
    for title in how.only:
        print(f"## {title}", flush=True)
        table = Table()
        SECTIONS[title](table, how)
        write_results({title: section(title, table, how)})
    print(f"\nwritten: {RESULTS}")


def write_results(new: dict[str, str]) -> None:
    """Put each new section in its place, at once: a run that is stopped keeps what it has measured."""
    old = RESULTS.read_text(encoding="utf-8").split("\n## ")[1:] if RESULTS.exists() else []
    sections = {section.split("\n", 1)[0]: f"## {section.rstrip()}\n" for section in old} | new
    parts = [introduction(), *(sections[name] for name in SECTIONS if name in sections)]
    RESULTS.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
