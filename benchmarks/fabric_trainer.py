"""Lightning Fabric drives MiniGPT: its own launch, wrapping, autocast, accumulation and clipping."""

import os

from lightning_fabric import Fabric
from workload import WORKLOAD, optimizer, run_timed

from ddp_course.distributed import process_group
from ddp_course.models.minigpt import MiniGPT


def main() -> None:
    world_size = int(os.environ["WORLD_SIZE"])
    fabric = Fabric(
        accelerator="cpu", devices=world_size, strategy="ddp" if world_size > 1 else "auto", precision="bf16-mixed"
    )
    fabric.launch()
    process_group.seed_shared(WORKLOAD.seed)
    model = MiniGPT(WORKLOAD.model_config())
    replica, adamw = fabric.setup(model, optimizer(model))
    tokens_of_a_rank = WORKLOAD.tokens_per_update(1)

    def train_step(step: int) -> float:
        total = 0.0
        for micro_step, (inputs, targets) in enumerate(WORKLOAD.batches(step, fabric.global_rank, fabric.world_size)):
            silent = micro_step < WORKLOAD.gradient_accumulation_steps - 1
            with fabric.no_backward_sync(replica, enabled=silent):
                loss = replica(inputs, targets)
                fabric.backward(loss / tokens_of_a_rank)
            total += loss.detach()
        fabric.clip_gradients(replica, adamw, max_norm=1.0)
        adamw.step()
        adamw.zero_grad()
        return fabric.all_reduce(total, reduce_op="mean").item() / tokens_of_a_rank

    run_timed(train_step)


if __name__ == "__main__":
    main()
    process_group.stop()
