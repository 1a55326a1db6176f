"""`make bench`: measure what the README claims about speed, and write RESULTS.md, one section per comparison.

Timings on shared machines drift, so nothing is compared across runs: what is compared takes turns, each round gives one
ratio, and the table shows the median ratio with the smallest and the largest. With --only, some sections are measured
again and the others stay as they were: each says on which machine and at which commit it was measured.
"""

import argparse
import os

from launches import compare_memory, compare_preparation, compare_start_up, count_clean_launches
from measure import HERE, Table, commit
from techniques import (
    compare_checkpoints,
    compare_reward,
    compare_sampling,
    compare_sharding,
    compare_sparse,
    compare_wrappers,
)
from trainers import WARM_UP, compare_trainers, compare_with_nanogpt, compare_world_sizes
from workload import Workload

from ddp_course.lab.gpu_record import folded, read_record
from ddp_course.lab.machine import describe
from ddp_course.models.minigpt import parameter_count

RESULTS = HERE / "RESULTS.md"
SECTIONS = {
    "Other trainers": lambda table, options: compare_trainers(table, options.rounds, options.steps),
    "Beside nanoGPT": lambda table, options: compare_with_nanogpt(table, options.rounds, options.steps),
    "Two processes": lambda table, options: compare_world_sizes(table, options.rounds, options.steps),
    "Wrappers": lambda table, options: compare_wrappers(table, options.rounds),
    "Sharding": lambda table, options: compare_sharding(table, options.rounds),
    "Checkpoints": lambda table, options: compare_checkpoints(table, options.rounds),
    "Reward model": lambda table, options: compare_reward(table, options.rounds),
    "Sampling": lambda table, options: compare_sampling(table, options.rounds),
    "Sparse embedding": lambda table, options: compare_sparse(table, options.rounds),
    "Start-up": lambda table, options: compare_start_up(table, options.rounds),
    "Preparation": lambda table, options: compare_preparation(table, options.rounds),
    "Memory": lambda table, options: compare_memory(table),
    "Clean launches": lambda table, options: count_clean_launches(table, options.launches),
}


def introduction() -> str:
    work = Workload()
    config = work.model_config()
    return f"""# Benchmark results

Written by `make bench`, never by hand. Every figure is a ratio within one run: the two sides take turns, and the
tables show the median and the range of the rounds' ratios. Another machine gives other ratios.

Where nothing else is said, the model has {config.layers} layers of {config.width} units, context {config.context} and
{config.vocab_size} tokens: {parameter_count(config):,} parameters. A process takes {work.gradient_accumulation_steps} \
micro-batches of {work.micro_batch_size} windows per
step, on one thread; the first {WARM_UP} steps of a run are not counted.

{gpu_section()}
"""


def gpu_section() -> str:
    """The record of `make gpu`, folded, or a sentence."""
    record = read_record("peers")
    return folded(record) if record else "Run on CPUs so far: `make gpu` measures on a machine that has one."


def section(title: str, table: Table, options: argparse.Namespace) -> str:
    machine, rows = describe(), "\n".join(table.rows)
    return f"""## {title}

{machine.cpu}, {machine.physical_cores} cores, bfloat16 units: {", ".join(machine.bf16_instructions) or "none"}; \
GPUs: {", ".join(machine.gpus) or "none"}; {machine.os}; PyTorch {machine.torch}, Python {machine.python};
commit {commit("ddp_course")}; {options.rounds} rounds of {options.steps} steps.

| what | median | range | to reach | reached |
|---|---|---|---|---|
{rows}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=SECTIONS, nargs="+", default=list(SECTIONS), help="sections to measure")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each comparison")
    parser.add_argument("--steps", type=int, default=5, help="steps per run")
    parser.add_argument("--launches", type=int, default=50, help="launches that must end with exit code 0")
    options = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the sides are compared on CPUs; `make gpu` compares on GPUs
    for title in options.only:
        print(f"## {title}", flush=True)
        table = Table()
        SECTIONS[title](table, options)
        write_results({title: section(title, table, options)})
    print(f"\nwritten: {RESULTS}")


def write_results(new: dict[str, str]) -> None:
    """Replace the sections of these titles in RESULTS.md. Called after each: a run that is stopped keeps the others."""
    old = RESULTS.read_text(encoding="utf-8").split("\n## ")[1:] if RESULTS.exists() else []
    sections = {section.partition("\n")[0]: f"## {section.rstrip()}\n" for section in old} | new
    parts = [introduction(), *(sections[name] for name in SECTIONS if name in sections)]
    RESULTS.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
