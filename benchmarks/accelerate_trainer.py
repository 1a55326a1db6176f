"""Hugging Face Accelerate drives MiniGPT: its own launch, wrapping, autocast, accumulation and clipping."""

from accelerate import Accelerator
from workload import WORKLOAD, optimizer, run_timed

from ddp_course.distributed import process_group
from ddp_course.models.minigpt import MiniGPT


def main() -> None:
    accelerator = Accelerator(
        cpu=True, mixed_precision="bf16", gradient_accumulation_steps=WORKLOAD.gradient_accumulation_steps
    )
    process_group.seed_shared(WORKLOAD.seed)
    model = MiniGPT(WORKLOAD.model_config())
    replica, adamw = accelerator.prepare(model, optimizer(model))
    tokens_of_a_rank = WORKLOAD.tokens_per_update(1)

    def train_step(step: int) -> float:
        total = 0.0
        for inputs, targets in WORKLOAD.batches(step, accelerator.process_index, accelerator.num_processes):
            with accelerator.accumulate(replica):
                loss = replica(inputs, targets)
                # Accelerate divides by the accumulation steps, DDP by the ranks: a mean over the rank's tokens.
                accelerator.backward(loss * (WORKLOAD.gradient_accumulation_steps / tokens_of_a_rank))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(replica.parameters(), 1.0)
                adamw.step()
                adamw.zero_grad()
            total += loss.detach()
        return accelerator.reduce(total, "mean").item() / tokens_of_a_rank

    run_timed(train_step)


if __name__ == "__main__":
    main()
    process_group.stop()
