"""The work that every trainer here is given: same model, same windows, same optimizer, same precision."""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from ddp_course.data.token_file import open_tokens, prepare
from ddp_course.data.windows import micro_batches
from ddp_course.models.minigpt import MiniGPTConfig
from ddp_course.training.optimization import make_adamw
from ddp_course.training.throughput import prefetch

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Workload:
    """A model, its batches and its learning rate. Weak scaling: the work of a process is the same at any world size."""

    layers: int = 6
    heads: int = 6
    width: int = 384
    context: int = 256
    vocab_size: int = 4096
    micro_batch_size: int = 8
    gradient_accumulation_steps: int = 4
    learning_rate: float = 1e-3
    seed: int = 1

    def model_config(self) -> MiniGPTConfig:
        return MiniGPTConfig(self.vocab_size, self.context, self.layers, self.heads, self.width)

    def tokens_per_update(self, world_size: int) -> int:
        return self.micro_batch_size * self.context * self.gradient_accumulation_steps * world_size

    def flags(self, world_size: int, steps: int) -> list[object]:
        """The same work as flags of `ddp_course/minigpt_ddp.py`."""
        names = ("layers", "heads", "width", "context", "vocab_size", "micro_batch_size", "learning_rate", "seed")
        flags = [part for name in names for part in (f"--{name.replace('_', '-')}", getattr(self, name))]
        flags += ["--tokens-per-update", self.tokens_per_update(world_size), "--steps", steps, "--warmup-steps", 1]
        # No validation and no text: the other trainers have neither.
        return flags + ["--log-every", 1, "--validation-windows", 2, "--validate-every", 0, "--sample-tokens", 0]

    def batches(
        self, step: int, rank: int, world_size: int, device: torch.device = CPU
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The micro-batches of a rank in one step, (inputs, targets) on `device`, from the token files in $TOKENS."""
        batches = micro_batches(
            open_tokens(os.environ["TOKENS"]).train,
            seed=self.seed,
            step=step,
            context=self.context,
            rank=rank,
            world_size=world_size,
            micro_batch_size=self.micro_batch_size,
            gradient_accumulation_steps=self.gradient_accumulation_steps,
        )
        return prefetch(batches, device)


if os.environ.get("WORKLOAD") == "gpt2":  # GPT-2's sizes, for a GPU
    WORKLOAD = AS_NANOGPT = Workload(12, 12, 768, 1024, 50304, micro_batch_size=16, gradient_accumulation_steps=1)
else:
    WORKLOAD = Workload()
    # nanoGPT's batch of 8, our default vocabulary
    AS_NANOGPT = Workload(vocab_size=2048, gradient_accumulation_steps=1)


def token_folder() -> str:
    """The default corpus as the 6-layer model reads it; made before anything is timed."""
    return str(prepare("stdlib", "bpe", WORKLOAD.vocab_size))


def optimizer(model: torch.nn.Module, fused: bool = True) -> torch.optim.Optimizer:
    return make_adamw(model, WORKLOAD.learning_rate, weight_decay=0.1, fused=fused)


def read_arguments() -> argparse.Namespace:
    """The command line of a compared trainer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--compile", action="store_true", help="torch.compile; of nanogpt_trainer.py only")
    return parser.parse_args()


def run_timed(train_step: Callable[[int], float]) -> None:
    """Call `train_step(number)`, which returns the loss, for each step of the command line.

    Prints one JSON object: "seconds" and "losses" of each step on this rank, and "memory", the peak of its GPU in
    bytes, or null without one.
    """
    seconds, losses = [], []
    for step in range(read_arguments().steps):
        start = time.perf_counter()
        losses.append(train_step(step))
        seconds.append(time.perf_counter() - start)
    memory = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
    print(json.dumps({"seconds": seconds, "losses": losses, "memory": memory}), flush=True)
