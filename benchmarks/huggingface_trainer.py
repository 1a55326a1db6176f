"""Hugging Face's Trainer drives MiniGPT: its own launch, wrapping, autocast, accumulation, clipping and loop."""

import json
import os
import tempfile
import time

from torch import Tensor, nn
from torch.utils.data import IterableDataset
from transformers import Trainer, TrainerCallback, TrainingArguments
from workload import WORKLOAD, optimizer, read_arguments

from ddp_course.distributed import process_group
from ddp_course.models.minigpt import MiniGPT


class MicroBatches(IterableDataset):
    """Micro-batches as single samples, the ranks' in turn: of `world_size` samples the Trainer gives each rank one."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __iter__(self):
        world_size = int(os.environ["WORLD_SIZE"])
        for step in range(self.steps):
            for ranks in zip(*(WORKLOAD.batches(step, rank, world_size) for rank in range(world_size)), strict=True):
                for inputs, targets in ranks:
                    yield {"inputs": inputs, "targets": targets}


class Losses(nn.Module):
    """MiniGPT as the Trainer calls it: by keywords, the loss (a mean over tokens) under its name."""

    def __init__(self) -> None:
        super().__init__()
        self.model = MiniGPT(WORKLOAD.model_config())

    def forward(self, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {"loss": self.model(inputs, targets) / targets.numel()}


class Clock(TrainerCallback):
    """Seconds from the first micro-batch of a step to the end of its optimizer step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, *args, **kwargs) -> None:
        self.start = time.perf_counter()

    def on_step_end(self, *args, **kwargs) -> None:
        self.seconds.append(time.perf_counter() - self.start)


def main() -> None:
    steps, clock = read_arguments().steps, Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=steps,
            per_device_train_batch_size=1,
            use_cpu=True,
            bf16=True,
            max_grad_norm=1.0,
            gradient_accumulation_steps=WORKLOAD.gradient_accumulation_steps,
            lr_scheduler_type="constant",
            seed=WORKLOAD.seed,
            ddp_find_unused_parameters=False,
            accelerator_config={"dispatch_batches": False},
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        process_group.seed_shared(WORKLOAD.seed)
        model = Losses()
        trainer = Trainer(
            model,
            arguments,
            train_dataset=MicroBatches(steps),
            data_collator=lambda batch: batch[0],
            optimizers=(optimizer(model), None),
            callbacks=[clock],
        )
        trainer.train()
    losses = [record["loss"] for record in trainer.state.log_history if "loss" in record]
    print(json.dumps({"seconds": clock.seconds, "losses": losses}), flush=True)


if __name__ == "__main__":
    main()
    process_group.stop()
