"""How much of a step is spent waiting for the network: steps with and without the all-reduce, in turns."""

import json
import statistics
import time

import torch
from torch.nn.parallel import DistributedDataParallel
from workload import WORKLOAD, optimizer

from ddp_course.distributed import process_group
from ddp_course.models.minigpt import MiniGPT

PAIRS = 4


def main() -> None:
    world = process_group.start()
    process_group.seed_shared(WORKLOAD.seed)
    model = MiniGPT(WORKLOAD.model_config())
    replica = DistributedDataParallel(model, gradient_as_bucket_view=True)
    adamw = optimizer(model, fused=True)

    def step_seconds(update: int, talks: bool) -> float:
        torch.distributed.barrier()
        start = time.perf_counter()
        for micro_step, (inputs, targets) in enumerate(WORKLOAD.batches(update, world.rank, world.size)):
            replica.require_backward_grad_sync = talks and micro_step == WORKLOAD.accumulation_steps - 1
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = replica(inputs, targets)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad()
        return time.perf_counter() - start

    step_seconds(0, True)
    pairs = [(step_seconds(1, True), step_seconds(1, False)) for _ in range(PAIRS)]
    shares = [(talking - silent) / talking for talking, silent in pairs]
    print(json.dumps({"share": statistics.median(shares), "shares": shares}))


if __name__ == "__main__":
    main()
    process_group.stop()
