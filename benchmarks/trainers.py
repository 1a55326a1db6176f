"""Compare whole trainers: ours with others on the same work, and ours with itself on two processes."""

import json
import statistics
import tempfile
from collections.abc import Mapping

import torch
from measure import TRAINER, Table, divide, in_turns, one_thread, run_script
from workload import AS_NANOGPT, WORKLOAD, Workload

from ddp_course.data.token_file import prepare
from ddp_course.lab.machine import matmul_peak
from ddp_course.launcher import torchrun
from ddp_course.models.minigpt import flops_per_token
from ddp_course.training.precision import has_bfloat16

WARM_UP = 2  # steps at the start of a run that are not counted
PEERS = {
    "DDP": "ddp_trainer.py",
    "Accelerate": "accelerate_trainer.py",
    "Fabric": "fabric_trainer.py",
    "FSDP2": "fsdp_trainer.py",
    "Hugging Face's Trainer": "huggingface_trainer.py",
    "the plain way": "plain_trainer.py",
}


def run_ours(
    nproc: int, steps: int, *flags: object, work: Workload = WORKLOAD, env: Mapping[str, object] | None = None
) -> tuple[float, float]:
    """One run of minigpt_ddp.py: the median of tokens per second after the warm-up, and the loss of the first step."""
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--run-dir", f"{folder}/run", *work.flags(nproc, steps), *flags]
        torchrun(TRAINER, *flags, nproc=nproc, timeout=900, quiet=True, env=env or one_thread())
        speeds, losses = logged(f"{folder}/run", "tokens_per_s"), logged(f"{folder}/run", "loss")
    return statistics.median(speeds[WARM_UP:]), losses[0]


def run_peer(script: str, nproc: int, steps: int) -> tuple[float, float]:
    """One run of a trainer of this folder: as `run_ours`."""
    result = run_script(script, "--steps", steps, nproc=nproc)
    return tokens_per_second(WORKLOAD, nproc, result["seconds"]), result["losses"][0]


def tokens_per_second(work: Workload, nproc: int, seconds: list[float]) -> float:
    """The median after the warm-up. seconds: of each step."""
    return work.tokens_per_update(nproc) / statistics.median(seconds[WARM_UP:])


def compare_trainers(table: Table, rounds: int, steps: int) -> None:
    for nproc in (1, 2):
        processes = plural(nproc, "process")
        speeds: dict[str, list[float]] = {name: [] for name in ("ours", *PEERS)}
        losses = []
        for name in in_turns(speeds, rounds):
            speed, loss = run_ours(nproc, steps) if name == "ours" else run_peer(PEERS[name], nproc, steps)
            speeds[name].append(speed)
            losses.append(loss)
        best = max(PEERS, key=lambda name: statistics.median(speeds[name]))
        for name in PEERS:
            goal = 2.0 if name == "the plain way" else 1.0 if name == best else None
            table.ratio(f"our tokens/s over {name}, {processes}", divide(speeds["ours"], speeds[name]), goal)
        for name in speeds:
            seconds = WORKLOAD.tokens_per_update(nproc) / statistics.median(speeds[name])
            table.figure(f"a step of {name}, {processes}", f"{seconds:.2f} s")
        gap = max(losses) - min(losses)
        table.figure(f"largest gap between the losses of their first step, {processes}", f"{gap:.0e} nats")


def compare_world_sizes(table: Table, rounds: int, steps: int) -> None:
    speeds, peaks = {1: [], 2: []}, []
    for nproc in in_turns(speeds, rounds):
        speeds[nproc].append(run_ours(nproc, steps)[0])
        if nproc == 1:
            peaks.append(single_thread_peak())
    table.ratio(
        "efficiency of 2 processes: tokens/s of a process, over 1 process alone",
        [both / (2 * single) for single, both in zip(speeds[1], speeds[2], strict=True)],
        0.95,
    )
    seconds = run_script("synchronization.py", "once", "never", "--rounds", rounds)
    table.ratio(
        "share of a step in exposed communication, 2 processes",
        [1 - ratio for ratio in divide(seconds["never"], seconds["once"])],
    )
    flops = flops_per_token(WORKLOAD.model_config())
    table.ratio(
        "achieved FLOP/s of training over the measured bfloat16 matrix-product peak, 1 thread",
        [speed * flops / peak for speed, peak in zip(speeds[1], peaks, strict=True)],
    )


def compare_with_nanogpt(table: Table, rounds: int, steps: int) -> None:
    """Ours in each precision that may pay here, with a float32 loop; both compiled as well."""
    fixed = ("float32", "bfloat16") if has_bfloat16(torch.device("cpu")) else ("float32",)
    compiled = [f"{precision}, compiled" for precision in fixed]
    loops = {"nanoGPT": (), "nanoGPT, compiled": ("--compile",)}
    goals = {"float32": 1.1, "bfloat16": 2.0}
    steps += WARM_UP
    for nproc, threads in ((1, 2), (2, 1)):
        env = {"OMP_NUM_THREADS": threads, "TOKENS": prepare("stdlib", "bpe", AS_NANOGPT.vocab_size)}
        setting = f"{plural(nproc, 'process')} x {plural(threads, 'thread')}"
        speeds: dict[str, list[float]] = {name: [] for name in (*loops, *fixed, "auto", *compiled)}
        products = []
        for name in in_turns(speeds, rounds):
            if name in loops:
                result = run_script("nanogpt_trainer.py", "--steps", steps, *loops[name], nproc=nproc, env=env)
                speed = tokens_per_second(AS_NANOGPT, nproc, result["seconds"])
                if name == "nanoGPT":
                    products.append(tokens_per_second(AS_NANOGPT, nproc, result["products"]))
            else:
                flags = ("--precision", name.removesuffix(", compiled"), *["--compile"] * (name in compiled))
                speed, _ = run_ours(nproc, steps, *flags, work=AS_NANOGPT, env=env)
            speeds[name].append(speed)
        for name in ("auto", *fixed, *compiled):
            table.ratio(
                f"our tokens/s over a loop as nanoGPT's is, ours in {name}, {setting}",
                divide(speeds[name], speeds["nanoGPT"]),
                goals.get(name.removesuffix(", compiled")),
            )
        for name in compiled:
            table.ratio(
                f"both compiled, ours in {name.removesuffix(', compiled')}, {setting}",
                divide(speeds[name], speeds["nanoGPT, compiled"]),
            )
        table.ratio(
            f"its float32 matrix products and nothing else, over that loop, {setting}",
            divide(products, speeds["nanoGPT"]),
        )
        better = max(fixed, key=lambda name: statistics.median(speeds[name]))
        table.ratio(
            f"--precision auto over the better fixed choice ({better}), {setting}",
            divide(speeds["auto"], speeds[better]),
            0.97,
        )


def logged(run_dir: str, key: str) -> list[float]:
    """The values of `key` that a run of ours has logged, in the order of its steps."""
    with open(f"{run_dir}/metrics.jsonl") as file:
        records = [json.loads(line) for line in file]
    return [record[key] for record in records if key in record]


def plural(count: int, noun: str) -> str:
    """Such as "1 process" and "2 processes"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('s') else 's'}"


def single_thread_peak() -> float:
    """The FLOP/s of bfloat16 matrix products on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return matmul_peak(torch.bfloat16)
    finally:
        torch.set_num_threads(threads)
