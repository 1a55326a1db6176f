"""Rungs about number formats: bfloat16, float16 with a scaler, and gradients that are squeezed on their way."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from ddp_course.distributed.process_group import World
from ddp_course.ladder.comparison import BOUNDED, Comparison, Rung, alone, batches, ddp, sgd, together, weights
from ddp_course.ladder.setting import Batch, Setting, share, target_count
from ddp_course.ladder.subjects import build
from ddp_course.ladder.tolerance import rounded_to

OVERFLOW = 2  # the update whose loss the last window's owner multiplies by too much


class InHalf(nn.Module):
    """A model whose matrix products are computed in half precision."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.module, self.dtype = model, dtype

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=self.dtype):
            return self.module(inputs, targets)


def in_bfloat16(setting: Setting, world: World) -> Comparison:
    """Weights and sums over ranks in float32, matrix products in bfloat16."""
    joint = batches(setting)
    replica, model = (InHalf(build(setting, torch.float32), torch.bfloat16) for _ in range(2))
    return Comparison(together(setting, world, ddp(replica), joint), alone(model, joint))


def in_float16(setting: Setting, world: World) -> Comparison:
    """The scaler skips an update if a scaled gradient overflows. One rank overflows; all must skip."""
    joint = batches(setting)
    several, skipped = scaled(ddp(InHalf(build(setting, torch.float32), torch.float16)), joint, world.rank, world.size)
    one, skipped_alone = scaled(InHalf(build(setting, torch.float32), torch.float16), joint, 0, 1)
    once = skipped == skipped_alone == [OVERFLOW]
    return Comparison(several, one, {"that update was skipped, and no other": once or setting.steps <= OVERFLOW})


def scaled(model: nn.Module, joint: list[Batch], rank: int, ranks: int) -> tuple[list, list[int]]:
    """Train with a gradient scaler; returns the weights' history and the updates that were skipped."""
    scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=2.0**8), sgd(model.parameters())
    history, skipped = [weights(model)], []
    for update, batch in enumerate(joint):
        inputs, targets = share(batch, rank, ranks)
        loss = model(inputs, targets) * ranks / target_count(batch)
        if update == OVERFLOW and rank == ranks - 1:
            loss = loss * 1e38  # times the scale: more than float32 can hold
        scaler.scale(loss).backward()
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        skipped += [update] if scaler.get_scale() < scale else []
        history.append(weights(model))
    return history, skipped


def float16_messages(setting: Setting, world: World) -> Comparison:
    """Gradients are float64, but travel as float16: each rank's is rounded before it is added."""
    joint, replica = batches(setting), ddp(build(setting))
    replica.register_comm_hook(dist.group.WORLD, default_hooks.fp16_compress_hook)
    return Comparison(together(setting, world, replica, joint), alone(build(setting), joint))


def low_rank_messages(setting: Setting, world: World) -> Comparison:
    """PowerSGD sends two thin matrices for each gradient matrix; what they miss is added to the next one."""
    joint, replica = batches(setting), ddp(build(setting))
    state = powerSGD_hook.PowerSGDState(
        dist.group.WORLD, matrix_approximation_rank=4, start_powerSGD_iter=2, min_compression_rate=0.5
    )
    replica.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    several = together(setting, world, replica, joint)
    return Comparison(several, alone(build(setting), joint))


def half_the_way(setting: Setting, comparison: Comparison) -> float:
    """Half of what the weights travelled: an approximation goes the same way, a broken one somewhere else."""
    return 0.5 * comparison.travelled()


HALF = (
    "products and gradients are rounded to {} in shares instead of together, so each moves by a few of its roundoffs; "
    "{} of them, of the way that the weights went"
)
SQUEEZED = (
    "a matrix of rank 4 is no gradient, so equality is not on offer; error feedback adds what was left out to the next "
    "update, so the weights lag behind by an update's worth, which has to be less than half of their way"
)
RUNGS = [
    Rung("bf16", "formats", in_bfloat16, rounded_to(torch.bfloat16, 16), HALF.format("bfloat16", 16), BOUNDED),
    Rung("fp16 and scaler", "formats", in_float16, rounded_to(torch.float16, 16), HALF.format("float16", 16), BOUNDED),
    Rung(
        "fp16 messages", "formats", float16_messages, rounded_to(torch.float16, 16), HALF.format("float16", 16), BOUNDED
    ),
    Rung("PowerSGD messages", "formats", low_rank_messages, half_the_way, SQUEEZED, BOUNDED),
]
