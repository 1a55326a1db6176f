"""The parts of `make gpu` that ranks run, one function per part: python gpu_rank.py FUNCTION FOLDER."""

import gzip
import json
import os
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function

from ddp_course.distributed import process_group
from ddp_course.models.minigpt import MiniGPT, MiniGPTConfig

MODEL = MiniGPTConfig(vocab_size=4096, context=512, layers=6, heads=8, width=512)
WINDOWS, STEPS, PROFILED = 32, 20, 3
IMAGES = 64 << 20  # bytes that a step also copies to the GPU, as a batch of images would
VARIANTS = {  # name -> (pinned memory, .item() after each backward pass)
    "pinned copies": (True, False),
    "pinned copies, .item()": (True, True),
    "copies from ordinary memory": (False, False),
}


def trace(folder: Path) -> None:
    """Time DDP steps of each variant, and write a trace of PROFILED further steps."""
    world = process_group.start()
    model = DistributedDataParallel(MiniGPT(MODEL).to(world.device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens, images = torch.randint(4096, (WINDOWS, MODEL.context + 1)), torch.zeros(IMAGES, dtype=torch.uint8)
    for number, (variant, (pinned, item)) in enumerate(VARIANTS.items()):
        batch = [part.pin_memory() if pinned else part for part in (tokens, images)]

        def step(batch=batch, item=item) -> None:
            with record_function("input"):
                windows, _ = (part.to(world.device, non_blocking=True) for part in batch)
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(windows[:, :-1], windows[:, 1:]) / tokens.numel()
            loss.backward()
            if item:
                loss.item()
            optimizer.step()
            optimizer.zero_grad()

        def seconds_per_step(count: int, step=step) -> float:
            start = time.perf_counter()
            for _ in range(count):
                step()
            torch.cuda.synchronize()
            return (time.perf_counter() - start) / count

        seconds_per_step(5)  # a warm-up
        seconds = seconds_per_step(STEPS)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            seconds_per_step(PROFILED)
        profiler.export_chrome_trace(str(folder / f"trace_{number}_rank{world.rank}.json.gz"))
        print(json.dumps({variant: seconds}), flush=True)


def memory(folder: Path) -> None:
    """Print the GPU's memory through one step, with and without activation checkpointing; write torch's snapshot."""
    world = process_group.start()
    for checkpointing in (False, True):
        torch._C._cuda_clearCublasWorkspaces()  # the scratch memory of the first pass would count in the second
        torch.cuda.reset_peak_memory_stats()
        model = MiniGPT(replace(MODEL, activation_checkpointing=checkpointing)).to(world.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        windows = torch.randint(4096, (WINDOWS, MODEL.context + 1), device=world.device)
        torch.cuda.memory._record_memory_history(max_entries=50_000, stacks="python")
        sizes = {"weights": torch.cuda.memory_allocated()}
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(windows[:, :-1], windows[:, 1:])
        sizes["after forward"] = torch.cuda.memory_allocated()
        loss.backward()
        sizes["after backward"] = torch.cuda.memory_allocated()
        optimizer.step()
        sizes |= {"after the step": torch.cuda.memory_allocated(), "peak": torch.cuda.max_memory_allocated()}
        if not checkpointing:
            torch.cuda.memory._dump_snapshot(str(folder / "snapshot.pickle"))
            snapshot = (folder / "snapshot.pickle").read_bytes()
            (folder / "memory_snapshot.pickle.gz").write_bytes(gzip.compress(snapshot))
        torch.cuda.memory._record_memory_history(enabled=None)
        print(json.dumps({"with checkpointing" if checkpointing else "without": sizes}), flush=True)
        del model, optimizer, loss


def hang(_: Path) -> None:
    """Hang in the second all-reduce: rank 1 stays away, or a single rank's GPU is busy for minutes before it."""
    rank, device = int(os.environ["RANK"]), torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", timeout=timedelta(seconds=10), device_id=device)
    values = torch.ones(1024, device=device)
    dist.all_reduce(values)
    torch.cuda.synchronize()
    print("the first all-reduce is over", flush=True)
    if dist.get_world_size() == 1:
        torch.cuda._sleep(300_000_000_000)  # cycles of the GPU's clock
    if rank == 0:
        dist.all_reduce(values)
    torch.cuda.synchronize()
    time.sleep(60)  # rank 1; NCCL's watchdog ends rank 0


if __name__ == "__main__":
    {function.__name__: function for function in (trace, memory, hang)}[sys.argv[1]](Path(sys.argv[2]))
    process_group.stop()
