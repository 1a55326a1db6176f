"""torch's DDP alone drives MiniGPT: autocast, no_sync and clipping as its documentation writes them."""

import contextlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from workload import WORKLOAD, optimizer, run_timed

from ddp_course.distributed import process_group
from ddp_course.models.minigpt import MiniGPT


def main() -> None:
    world = process_group.start()
    process_group.seed_shared(WORKLOAD.seed)
    replica = DistributedDataParallel(MiniGPT(WORKLOAD.model_config()).to(world.device))
    adamw = optimizer(replica)
    tokens_of_a_rank = WORKLOAD.tokens_per_update(1)

    def train_step(step: int) -> float:
        total = torch.zeros((), device=world.device)
        batches = WORKLOAD.batches(step, world.rank, world.size, world.device)
        for micro_step, (inputs, targets) in enumerate(batches, start=1):
            last = micro_step == WORKLOAD.gradient_accumulation_steps
            with contextlib.nullcontext() if last else replica.no_sync():
                with torch.autocast(world.device.type, dtype=torch.bfloat16):
                    loss = replica(inputs, targets)
                (loss / tokens_of_a_rank).backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(replica.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad()
        dist.all_reduce(total)
        return total.item() / WORKLOAD.tokens_per_update(world.size)

    run_timed(train_step)


if __name__ == "__main__":
    main()
    process_group.stop()
