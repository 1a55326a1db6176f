"""Rungs about dynamic sampling: windows are drawn until a batch is full of those that teach, which ranks find unevenly.

In GRPO a group teaches if its rewards differ (DAPO, arXiv 2503.14476); here a window does if its first target is even.
"""

import itertools
from collections.abc import Callable, Iterable
from functools import partial

import torch
import torch.distributed as dist

from ddp_course.distributed.process_group import World
from ddp_course.ladder.comparison import Comparison, Rung, ddp, mistake, sgd, summed_loss, train_reference, weights
from ddp_course.ladder.setting import Batch, Setting, global_batch, target_count
from ddp_course.ladder.subjects import build
from ddp_course.ladder.tolerance import REORDERED, reordered

ROUNDS = 1000  # room for each step among the numbers of the global batches


def dynamic_sampling(setting: Setting, world: World) -> Comparison:
    """All ranks stop after the same round, keep the first windows that teach, and divide by the tokens of all."""
    replica = ddp(build(setting))
    optimizer, replicas = sgd(replica.parameters()), [weights(replica)]
    draw = partial(own_windows, setting, world.rank, world.size, numbers_of_all_ranks)
    for step in range(setting.steps):
        inputs, targets = draw(step)
        tokens = setting.tokens
        if setting.fault == "own_divisor":
            tokens = max(1, world.size * target_count((inputs, targets)))
        (summed_loss(replica, inputs, targets) * world.size / tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        replicas.append(weights(replica))
    alone = (own_windows(setting, 0, 1, list, step) for step in range(setting.steps))
    return Comparison(replicas, train_reference(build(setting), alone))


def own_windows(setting: Setting, rank: int, ranks: int, numbers_of_all: Callable[..., list[int]], step: int) -> Batch:
    """Draw rounds of windows until `setting.windows` of all ranks' teach; returns this rank's of the first of them."""
    own: dict[int, Batch] = {}
    for turn in itertools.count():
        inputs, targets = global_batch(setting, step * ROUNDS + turn)
        teaching = [n for n in range(rank, setting.windows, ranks) if targets[n, 0] % 2 == 0]
        own |= {turn * setting.windows + n: (inputs[n], targets[n]) for n in teaching}
        if setting.fault == "own_stop" and ranks > 1:
            kept, wanted = list(own), setting.windows * (rank + 1) // ranks - setting.windows * rank // ranks
        else:
            kept, wanted = sorted(numbers_of_all(own)), setting.windows
        if len(kept) >= wanted:
            none = torch.empty(0, setting.context, dtype=torch.int64)
            rows = [own[number] for number in kept[:wanted] if number in own]
            return tuple(torch.stack(part) for part in zip(*rows, strict=True)) if rows else (none, none)


def numbers_of_all_ranks(own: Iterable[int]) -> list[int]:
    """The numbers of all ranks' windows that teach (collective): they give decision, batch and divisor."""
    dist.all_gather_object(gathered := [None] * dist.get_world_size(), list(own))
    return sum(gathered, [])


DYNAMIC = Rung("dynamic sampling", "rollouts", dynamic_sampling, reordered, REORDERED)
RUNGS = [
    DYNAMIC,
    mistake(
        "own windows as divisor",
        "own_divisor",
        DYNAMIC,
        "ranks found different numbers of windows, so DDP's mean weights them by rank",
    ),
    mistake(
        "own decision to stop", "own_stop", DYNAMIC, "each rank keeps its own first windows, not those of all ranks"
    ),
]
