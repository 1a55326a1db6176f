"""Measure no_sync: steps that all-reduce once and steps that all-reduce every micro-batch, in turns.

    TOKENS=$(folder of the tokens) torchrun --standalone --nproc-per-node=2 benchmarks/no_sync_or_sync.py

Prints {"no_sync": seconds a step, "every_micro_batch": seconds, "ratios": every/no_sync of each pair, "ratio"}.
"""

import contextlib
import json
import statistics
import time

import torch
from measure import divide, in_turns
from torch.nn.parallel import DistributedDataParallel
from workload import WORKLOAD, optimizer

from ddp_course.distributed import process_group
from ddp_course.models.minigpt import MiniGPT

PAIRS = 5


def main() -> None:
    world = process_group.start()
    process_group.seed_shared(WORKLOAD.seed)
    model = MiniGPT(WORKLOAD.model_config())
    replica = DistributedDataParallel(model, gradient_as_bucket_view=True)
    adamw = optimizer(model, fused=True)
    scale = world.size / WORKLOAD.tokens_per_update(world.size)

    def step_seconds(step: int, silent: bool) -> float:
        torch.distributed.barrier()  # neither side waits for the end of the other
        start = time.perf_counter()
        for micro_step, (inputs, targets) in enumerate(WORKLOAD.batches(step, world.rank, world.size)):
            last = micro_step == WORKLOAD.accumulation_steps - 1
            with replica.no_sync() if silent and not last else contextlib.nullcontext():
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = replica(inputs, targets)
                (loss * scale).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad()
        return time.perf_counter() - start

    step_seconds(0, silent=False), step_seconds(1, silent=True)  # buckets are rebuilt, memory is allocated
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for silent in in_turns(seconds, PAIRS):
        seconds[silent].append(step_seconds(2 + len(seconds[silent]), silent))
    ratios = divide(seconds[False], seconds[True])
    medians = {"no_sync": statistics.median(seconds[True]), "every_micro_batch": statistics.median(seconds[False])}
    print(json.dumps(medians | {"ratios": ratios, "ratio": statistics.median(ratios)}), flush=True)


if __name__ == "__main__":
    main()
    process_group.stop()
