"""How much of a step is spent waiting for the network: steps with and without the all-reduce, in turns."""

import json
import time

import torch
from measure import in_turns
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

    def step_seconds(step: int, sends: bool) -> float:
        torch.distributed.barrier()
        start = time.perf_counter()
        for micro_step, (inputs, targets) in enumerate(WORKLOAD.batches(step, world.rank, world.size)):
            replica.require_backward_grad_sync = sends and micro_step == WORKLOAD.accumulation_steps - 1
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = replica(inputs, targets)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad()
        return time.perf_counter() - start

    step_seconds(0, True)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for sends in in_turns(seconds, PAIRS):
        seconds[sends].append(step_seconds(1, sends))
    print(json.dumps({"shares": [1 - silent / sending for sending, silent in zip(*seconds.values(), strict=True)]}))


if __name__ == "__main__":
    main()
    process_group.stop()
