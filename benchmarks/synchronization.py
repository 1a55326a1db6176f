"""Measure what the synchronization of gradients costs: training steps of two or more kinds, in turns.

    TOKENS=FOLDER_OF_TOKENS torchrun --standalone --nproc-per-node=2 benchmarks/synchronization.py never once

A step synchronizes "never", "once" (in its last micro-batch, the others under no_sync), or in "every" micro-batch.
Prints one JSON object: kind -> seconds of each step.
"""

import argparse
import contextlib
import json
import time

import torch
from measure import in_turns
from torch.nn.parallel import DistributedDataParallel
from workload import WORKLOAD, optimizer

from ddp_course.distributed import process_group
from ddp_course.models.minigpt import MiniGPT

COUNT = WORKLOAD.gradient_accumulation_steps
SYNCHRONIZED = {"never": [], "once": [COUNT - 1], "every": range(COUNT)}  # kind of step -> indices of micro-batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="+", choices=SYNCHRONIZED)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    world = process_group.start()
    process_group.seed_shared(WORKLOAD.seed)
    model = MiniGPT(WORKLOAD.model_config())
    replica = DistributedDataParallel(model, gradient_as_bucket_view=True)
    adamw = optimizer(model)
    scale = world.size / WORKLOAD.tokens_per_update(world.size)

    def step_seconds(step: int, kind: str) -> float:
        torch.distributed.barrier()  # no step begins while the other rank is still in the one before
        start = time.perf_counter()
        for index, (inputs, targets) in enumerate(WORKLOAD.batches(step, world.rank, world.size)):
            with contextlib.nullcontext() if index in SYNCHRONIZED[kind] else replica.no_sync():
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = replica(inputs, targets)
                (loss * scale).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad()
        return time.perf_counter() - start

    for step in range(2):
        step_seconds(step, "once")  # a warm-up: buckets are rebuilt, memory is allocated
    seconds: dict[str, list[float]] = {kind: [] for kind in options.kinds}
    for kind in in_turns(seconds, options.rounds):
        seconds[kind].append(step_seconds(2 + len(seconds[kind]), kind))
    print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main()
    process_group.stop()
