"""Rungs about precision: bfloat16, float16 with a scaler, and compressed gradients."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course.distributed.process_group import World
from ddp_course.ladder.comparison import BOUNDED, Comparison, Rung, batches, compare, sgd, weights
from ddp_course.ladder.models import build
from ddp_course.ladder.setting import Batch, Setting, share, target_count
from ddp_course.ladder.tolerance import roundoff, share_of_distance

OVERFLOW = 2  # the step whose loss the last rank multiplies by too large a factor
ROUNDOFFS = 16  # the tolerance of half precision


class HalfPrecision(nn.Module):
    """A wrapper under which a model's matrix products are computed in half precision."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.module, self.dtype = model, dtype

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=self.dtype):
            return self.module(inputs, targets)


def in_bfloat16(setting: Setting, world: World) -> Comparison:
    """Weights and all-reduces in float32, matrix products in bfloat16."""
    replica, model = (HalfPrecision(build(setting, torch.float32), torch.bfloat16) for _ in range(2))
    return compare(setting, world, DDP(replica), model)


def in_float16(setting: Setting, world: World) -> Comparison:
    """The scaler skips a step if a scaled gradient overflows. That of one rank does; all ranks must skip the step."""
    replica, model = (HalfPrecision(build(setting, torch.float32), torch.float16) for _ in range(2))
    replicas, skipped = train_scaled(DDP(replica), batches(setting), world.rank, world.size)
    reference, skipped_by_reference = train_scaled(model, batches(setting), rank=0, ranks=1)
    only_overflow = skipped == skipped_by_reference == [OVERFLOW] or setting.steps <= OVERFLOW
    return Comparison(replicas, reference, {"the step that overflowed was skipped, and no other": only_overflow})


def train_scaled(model: nn.Module, global_batches: list[Batch], rank: int, ranks: int) -> tuple[list, list[int]]:
    """Train with a gradient scaler; returns the weights before the first step and after each, and the skipped steps."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    optimizer = sgd(model.parameters())
    history, skipped = [weights(model)], []
    for step, batch in enumerate(global_batches):
        inputs, targets = share(batch, rank, ranks)
        loss = model(inputs, targets) * ranks / target_count(batch)
        if step == OVERFLOW and rank == ranks - 1:
            loss = loss * 1e38  # times the scale, this is beyond the range of float32
        scaler.scale(loss).backward()
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if scaler.get_scale() < scale:
            skipped.append(step)
        history.append(weights(model))
    return history, skipped


def float16_messages(setting: Setting, world: World) -> Comparison:
    """Gradients are float64, but all-reduced in float16: each rank's gradient is rounded before the sum."""
    replica = DDP(build(setting))
    replica.register_comm_hook(dist.group.WORLD, default_hooks.fp16_compress_hook)
    return compare(setting, world, replica)


def low_rank_messages(setting: Setting, world: World) -> Comparison:
    """PowerSGD sends two low-rank factors of each gradient matrix; the error is added to the next gradient."""
    replica = DDP(build(setting))
    state = powerSGD_hook.PowerSGDState(
        dist.group.WORLD, matrix_approximation_rank=4, start_powerSGD_iter=2, min_compression_rate=0.5
    )
    replica.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return compare(setting, world, replica)


def half_precision_rung(name: str, run: Callable[[Setting, World], Comparison], dtype: torch.dtype) -> Rung:
    because = (
        f"products and gradients are rounded to {str(dtype).removeprefix('torch.')} per rank instead of once, so each "
        f"changes by a few roundoffs; the tolerance is {ROUNDOFFS} of them, relative to the distance that the weights "
        "travelled"
    )
    return Rung(name, "formats", run, share_of_distance(ROUNDOFFS * roundoff(dtype), because), BOUNDED)


COMPRESSED = (
    "a matrix of rank 4 only approximates a gradient, so equality cannot be expected; error feedback adds the rest to "
    "the next gradient, so the weights lag behind by about a step: less than half of the distance that they travelled"
)
RUNGS = [
    half_precision_rung("bf16", in_bfloat16, torch.bfloat16),
    half_precision_rung("fp16 and scaler", in_float16, torch.float16),
    half_precision_rung("fp16 messages", float16_messages, torch.float16),
    Rung("PowerSGD messages", "formats", low_rank_messages, share_of_distance(0.5, COMPRESSED), BOUNDED),
]
