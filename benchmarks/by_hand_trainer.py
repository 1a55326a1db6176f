"""Our bucketed data parallel against torch's DDP: the same training step in one process, with either, in turns."""

import argparse
import contextlib
import itertools
import json
import time

import torch
import torch.distributed as dist
from measure import divide, in_turns
from torch.nn.parallel import DistributedDataParallel
from workload import WORKLOAD, optimizer

from ddp_course.distributed import process_group
from ddp_course.distributed.by_hand import BucketedDataParallel
from ddp_course.models.minigpt import MiniGPT

WRAPPERS = {"by hand": BucketedDataParallel, "DDP": DistributedDataParallel}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=6, help="steps of each, the first two left out")
    default = WORKLOAD.gradient_accumulation_steps
    parser.add_argument("--gradient-accumulation-steps", type=int, default=default, help="1: send each time")
    args = parser.parse_args()
    world = process_group.start()
    trainers = {}
    for name, wrap in WRAPPERS.items():
        process_group.seed_shared(WORKLOAD.seed)
        replica = wrap(MiniGPT(WORKLOAD.model_config()))
        trainers[name] = (replica, optimizer(replica))
    tokens_of_a_rank = args.gradient_accumulation_steps * WORKLOAD.micro_batch_size * WORKLOAD.context

    def step_seconds(name: str, step: int) -> float:
        replica, adamw = trainers[name]
        dist.barrier()
        start = time.perf_counter()
        batches = itertools.islice(WORKLOAD.batches(step, world.rank, world.size), args.gradient_accumulation_steps)
        for micro_step, (inputs, targets) in enumerate(batches, start=1):
            with contextlib.nullcontext() if micro_step == args.gradient_accumulation_steps else replica.no_sync():
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = replica(inputs, targets)
                (loss / tokens_of_a_rank).backward()
        if name == "by hand":
            replica.finish_gradient_synchronization()
        torch.nn.utils.clip_grad_norm_(replica.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad()
        return time.perf_counter() - start

    seconds: dict[str, list[float]] = {name: [] for name in WRAPPERS}
    for name in in_turns(seconds, args.pairs):
        seconds[name].append(step_seconds(name, len(seconds[name])))
    weights = [torch.cat([p.detach().flatten() for p in replica.parameters()]) for replica, _ in trainers.values()]
    ratios = divide(seconds["by hand"][2:], seconds["DDP"][2:])
    print(json.dumps({"ratios": ratios, "gap": (weights[0] - weights[1]).abs().max().item()}))


if __name__ == "__main__":
    main()
    process_group.stop()
