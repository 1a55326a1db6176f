"""The same model written the plain way: float32, attention with an explicit mask, an optimizer that is not fused.

Gradients are averaged by DDP, as everywhere. Everything else is what a first version of a trainer looks like.
"""

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from workload import WORKLOAD, optimizer, run_timed

from ddp_course.distributed import process_group
from ddp_course.models import minigpt


class MaskedAttention(nn.Module):
    """Scores, mask, softmax, sum: four tensors of the size of the scores, and a mask that is stored."""

    def __init__(self, config: minigpt.MiniGPTConfig, attention: str) -> None:
        super().__init__()
        self.heads = config.heads
        self.query_key_value = nn.Linear(config.width, 3 * config.width)
        self.projection = nn.Linear(config.width, config.width)
        self.register_buffer("mask", torch.tril(torch.ones(config.context, config.context)))

    def forward(self, x: Tensor, past: None = None) -> Tensor:
        batch, length, width = x.shape
        query, key, value = self.query_key_value(x).split(width, dim=2)
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for part in (query, key, value)
        )
        scores = query @ key.transpose(-2, -1) / math.sqrt(width // self.heads)
        scores = scores.masked_fill(self.mask[:length, :length] == 0, float("-inf"))
        return self.projection((scores.softmax(-1) @ value).transpose(1, 2).contiguous().view(batch, length, width))


class PlainMiniGPT(minigpt.MiniGPT):
    """The loss as one cross-entropy over the logits of all tokens."""

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        logits = super().forward(tokens)
        return nn.functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), reduction="sum")


def main() -> None:
    world = process_group.start()
    minigpt.Attention = MaskedAttention
    process_group.seed_shared(WORKLOAD.seed)
    model = PlainMiniGPT(WORKLOAD.model_config())
    replica = DistributedDataParallel(model) if world.size > 1 else model
    adamw = optimizer(model, fused=False)
    tokens = WORKLOAD.tokens_per_update(world.size)

    def train_step(step: int) -> float:
        total = 0.0
        for micro_step, (inputs, targets) in enumerate(WORKLOAD.batches(step, world.rank, world.size)):
            if world.size > 1:
                replica.require_backward_grad_sync = micro_step == WORKLOAD.gradient_accumulation_steps - 1
            loss = replica(inputs, targets)
            (loss * (world.size / tokens)).backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad()
        total = torch.tensor(total, dtype=torch.float64)
        dist.all_reduce(total)
        return total.item() / tokens

    run_timed(train_step)


if __name__ == "__main__":
    main()
    process_group.stop()
