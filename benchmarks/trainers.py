"""Whole trainers compared: ours with others on the same work, and ours with itself on two processes."""

import json
import statistics
import tempfile
from pathlib import Path

import torch
from measure import HERE, TRAINER, Table, divide, in_turns, one_thread
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


def tokens_per_second(who: str, nproc: int, steps: int) -> tuple[float, float]:
    """One run of one trainer: the median over its steps, warm-up left out, and the loss of its first step."""
    if who == "ours":
        with tempfile.TemporaryDirectory() as folder:
            speeds, losses = our_run(Path(folder) / "run", nproc, steps)
        return statistics.median(speeds[WARM_UP:]), losses[0]
    run = torchrun(HERE / PEERS[who], "--steps", steps, nproc=nproc, timeout=900, quiet=True, env=one_thread())
    seconds = run.results[0]["seconds"][WARM_UP:]
    return WORKLOAD.tokens_per_update(nproc) / statistics.median(seconds), run.results[0]["losses"][0]


def our_run(
    run_dir: Path,
    nproc: int,
    steps: int,
    *flags: object,
    work: Workload = WORKLOAD,
    env: dict[str, object] | None = None,
) -> tuple[list[float], list[float]]:
    """Tokens per second and loss of each step."""
    flags = ["--run-dir", run_dir, *work.flags(nproc, steps), *flags]
    torchrun(TRAINER, *flags, nproc=nproc, timeout=900, quiet=True, env=env or one_thread())
    records = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    records = [record for record in records if "tokens_per_s" in record]
    return [record["tokens_per_s"] for record in records], [record["loss"] for record in records]


def compare_trainers(table: Table, rounds: int, steps: int) -> None:
    for nproc in (1, 2):
        speeds: dict[str, list[float]] = {who: [] for who in ("ours", *PEERS)}
        losses = []
        for who in in_turns(speeds, rounds):
            speed, loss = tokens_per_second(who, nproc, steps)
            speeds[who].append(speed)
            losses.append(loss)
        processes = "1 process" if nproc == 1 else f"{nproc} processes"
        best = max(speeds.keys() - {"ours"}, key=lambda who: statistics.median(speeds[who]))
        for who in PEERS:
            goal = 2.0 if who == "the plain way" else 1.0 if who == best else None
            table.ratio(f"our tokens/s over {who}, {processes}", divide(speeds["ours"], speeds[who]), goal)
        for who in speeds:
            step = WORKLOAD.tokens_per_update(nproc) / statistics.median(speeds[who])
            table.figure(f"a step of {who}, {processes}", f"{step:.2f} s")
        gap = max(losses) - min(losses)
        table.figure(f"largest gap between the losses of their first step, {processes}", f"{gap:.0e} nats")


def compare_world_sizes(table: Table, rounds: int, steps: int) -> None:
    speeds, peak = {1: [], 2: []}, []
    for nproc in in_turns(speeds, rounds):
        speeds[nproc].append(tokens_per_second("ours", nproc, steps)[0])
        if nproc == 1:
            peak.append(single_thread_peak())
    table.ratio(
        "efficiency of 2 processes: tokens/s of a process, over 1 process alone",
        [both / (2 * single) for single, both in zip(speeds[1], speeds[2], strict=True)],
        0.95,
    )
    share = torchrun(HERE / "exposed_communication.py", nproc=2, timeout=900, quiet=True, env=one_thread()).results[0]
    table.ratio("share of a step in exposed communication, 2 processes", share["shares"])
    flops = flops_per_token(WORKLOAD.model_config())
    table.ratio(
        "achieved FLOP/s of training over the measured bfloat16 matrix-product peak, 1 thread",
        [speed * flops / top for speed, top in zip(speeds[1], peak, strict=True)],
    )


def compare_with_nanogpt(table: Table, rounds: int, steps: int) -> None:
    """Ours in each number format that may pay here, beside a float32 loop; both compiled as well."""
    fast = ["bfloat16"] * has_bfloat16(torch.device("cpu"))
    fixed = ("float32", *fast)
    compiled = [f"{how}, compiled" for how in fixed]
    loops = {"nanoGPT": (), "nanoGPT, compiled": ("--compile",)}
    steps += WARM_UP
    for nproc, threads in ((1, 2), (2, 1)):
        env = {"OMP_NUM_THREADS": threads, "TOKENS": prepare("stdlib", "bpe", AS_NANOGPT.vocab_size)}
        speeds: dict[str, list[float]] = {who: [] for who in (*loops, *fixed, "auto", *compiled)}
        tokens, products = AS_NANOGPT.tokens_per_update(nproc), []
        for who in in_turns(speeds, rounds):
            if who in loops:
                result = torchrun(
                    HERE / "nanogpt_trainer.py",
                    "--steps",
                    steps,
                    *loops[who],
                    nproc=nproc,
                    timeout=900,
                    quiet=True,
                    env=env,
                ).results[0]
                speeds[who].append(tokens / statistics.median(result["seconds"][WARM_UP:]))
                if who == "nanoGPT":
                    products.append(tokens / statistics.median(result["products"][WARM_UP:]))
                continue
            flags = ("--precision", who.split(",")[0], *["--compile"] * (who in compiled))
            with tempfile.TemporaryDirectory() as folder:
                speed_by_step, _ = our_run(Path(folder) / "run", nproc, steps, *flags, work=AS_NANOGPT, env=env)
            speeds[who].append(statistics.median(speed_by_step[WARM_UP:]))
        where = f"{nproc} process{'es' * (nproc > 1)} x {threads} thread{'s' * (threads > 1)}"
        goals = {"float32": 1.1, "bfloat16": 2.0}
        for how in ("auto", *fixed, *compiled):
            table.ratio(
                f"our tokens/s over a loop as nanoGPT's is, ours in {how}, {where}",
                divide(speeds[how], speeds["nanoGPT"]),
                goals.get(how.removesuffix(", compiled")),
            )
        for how in compiled:
            table.ratio(
                f"both compiled, ours in {how.split(',')[0]}, {where}", divide(speeds[how], speeds["nanoGPT, compiled"])
            )
        table.ratio(
            f"its float32 matrix products and nothing else, over that loop, {where}",
            divide(products, speeds["nanoGPT"]),
        )
        better = max(fixed, key=lambda how: statistics.median(speeds[how]))
        table.ratio(
            f"--precision auto over the better fixed choice ({better}), {where}",
            divide(speeds["auto"], speeds[better]),
            0.97,
        )


def single_thread_peak() -> float:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return matmul_peak(torch.bfloat16)
    finally:
        torch.set_num_threads(threads)
