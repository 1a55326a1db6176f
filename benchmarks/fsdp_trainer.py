"""FSDP2 drives MiniGPT: each block a unit of `fully_shard`, autocast, gradients sent with the last micro-batch only."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from workload import WORKLOAD, optimizer, run_timed

from ddp_course.distributed import process_group
from ddp_course.models.minigpt import MiniGPT


def main() -> None:
    world = process_group.start()
    process_group.seed_shared(WORKLOAD.seed)
    model = MiniGPT(WORKLOAD.model_config()).to(world.device)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    adamw = optimizer(model)
    tokens_of_a_rank = WORKLOAD.tokens_per_update(1)

    def train_step(step: int) -> float:
        total = torch.zeros((), device=world.device)
        batches = WORKLOAD.batches(step, world.rank, world.size, world.device)
        for micro_step, (inputs, targets) in enumerate(batches, start=1):
            model.set_requires_gradient_sync(micro_step == WORKLOAD.gradient_accumulation_steps)
            with torch.autocast(world.device.type, dtype=torch.bfloat16):
                loss = model(inputs, targets)
            (loss / tokens_of_a_rank).backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad()
        dist.all_reduce(total)
        return total.item() / WORKLOAD.tokens_per_update(world.size)

    run_timed(train_step)


if __name__ == "__main__":
    main()
    process_group.stop()
